"""A breakdown on the terminal: shares, causes, stages, collectives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

MOST_ROWS = 12
CAPTION = (
    "exclusive shares, means over steps and ranks, which sum to the step; waiting: for the last rank to come; hidden: "
    "behind computation, in no share; worst: the rank with most of it"
)


def print_breakdown(document: Mapping[str, Any], folder: Path | None) -> None:
    """Print the content of a breakdown.json for a person; folder: where its files are."""
    console = Console(soft_wrap=True, highlight=False)
    steps = document["steps"]
    console.print(_heading(document), style="bold", markup=False)
    if steps:
        console.print(_shares(document))
    for cause in document["causes"]:
        console.print(f"- {cause['sentence']}", markup=False)
    pipeline = document["pipeline"]
    if pipeline is not None:
        counted = "" if pipeline["schedule"] is None else f"; the schedule itself has {pipeline['schedule']:.1%}"
        measured = pipeline["bubble"]
        console.print(
            "bubble: not measured"
            if measured is None
            else f"bubble: {measured:.1%} of the pipeline's makespan (the shares are of the step){counted}"
        )
    if document["collectives"]:
        console.print(_collectives(document["collectives"]))
    unknown = [kernel for kernel in document["kernels"] if kernel["class"] == "other"]
    if unknown:
        named = ", ".join(kernel["name"][:60] for kernel in unknown[:3])
        console.print(f"in compute/other, as their names say nothing: {len(unknown)}, such as {named}", markup=False)
    for note in document["notes"]:
        console.print(f"note: {note}", markup=False)
    if folder is not None:
        console.print(
            f"written to {folder}: breakdown.json, timeline.json.gz, timeline.png, timeline.svg, merged.json.gz",
            markup=False,
        )


def _heading(document: Mapping[str, Any]) -> str:
    steps, ranks = document["steps"], document["ranks"]
    world = f" of {document['world']}" if document["world"] else ""
    what = document["layout"] or document["traces"]
    device = document["device_name"] or document["device"]
    numbers = [step["step"] for step in steps]
    told = f"steps {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"step {numbers[0]}" if steps else "no step"
    return f"{what}: {len(ranks)}{world} {'rank' if ranks == [0] and not world else 'ranks'} on {device}, {told}"


def _shares(document: Mapping[str, Any]) -> Table:
    parts = [rank for step in document["steps"] for rank in step["ranks"]]
    mean_seconds = sum(part["seconds"] for part in parts) / len(parts)
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=CAPTION)
    table.add_column("share", no_wrap=True)
    for column in ("ms", "%", "of it waiting", "hidden ms", "worst ms", "rank"):
        table.add_column(column, no_wrap=True, justify="right")
    for name, fraction in document["mean"].items():
        worst = max(parts, key=lambda part: part["shares"].get(name, 0.0))
        waiting, hidden = (sum(part[kind].get(name, 0.0) for part in parts) for kind in ("waiting", "hidden"))
        exposed = sum(part["shares"].get(name, 0.0) for part in parts)
        table.add_row(
            name,
            f"{1e3 * fraction * mean_seconds:,.2f}",
            f"{100 * fraction:.1f}",
            f"{waiting / exposed:.0%}" if waiting and exposed else "",
            f"{1e3 * hidden / len(parts):,.2f}" if hidden else "",
            f"{1e3 * worst['shares'].get(name, 0.0):,.2f}",
            str(worst["rank"]),
        )
    table.add_row(
        "step",
        f"{1e3 * mean_seconds:,.2f}",
        "100.0",
        "",
        "",
        f"{1e3 * document['worst']['seconds']:,.2f}",
        str(document["worst"]["rank"]),
    )
    return table


def _collectives(rows: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption="means of a rank and a step; speed: bus bandwidth")
    for column in ("collective", "axis"):
        table.add_column(column, no_wrap=True)
    for column in ("ranks", "count", "size", "ms", "exposed ms", "speed"):
        table.add_column(column, no_wrap=True, justify="right")
    for row in rows[:MOST_ROWS]:
        speed = row["bus_bytes_per_second"]
        table.add_row(
            row["collective"],
            row["axis"],
            str(row["group_size"] or "?"),
            f"{row['count']:,.4g}",
            _scaled(row["bytes"], "B") if row["bytes"] else "?",
            f"{1e3 * row['seconds']:,.2f}",
            f"{1e3 * row['exposed_seconds']:,.2f}",
            _scaled(speed, "B/s") if speed else "?",
        )
    return table


def _scaled(value: float, unit: str) -> str:
    """Three digits and a prefix."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
