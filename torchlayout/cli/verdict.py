"""The verdict of a study on the terminal: a table of the layouts, the losers by name, and one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

CAPTION = (
    "s/step, tokens/s: medians after the warm-up; x: speed against the baseline; GiB: of the worst rank; "
    "loss: largest relative difference"
)


def print_verdict(content: Mapping[str, Any]) -> None:
    """Prints the content of a report.json for a person, on standard output."""
    console = Console(soft_wrap=True, highlight=False)
    measured = [layout for layout in content["layouts"] if layout["step_seconds"]]
    if measured:
        console.print(_table(measured))
        console.print(content["study"]["mfu_note"], style="dim")
    for layout in content["layouts"]:
        if not layout["step_seconds"]:
            console.print(f"{layout['label']}: {layout['status']}: {layout['reason']}", markup=False)
        elif layout["reason"]:
            console.print(f"{layout['label']}: {layout['reason']}", markup=False)
    for problem in content["verdict"]["problems"]:
        console.print(problem, style="bold red", markup=False)
    console.print(_terms(content), markup=False)
    console.print(content["verdict"]["sentence"], style="bold", markup=False)


def _table(layouts: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=CAPTION)
    table.add_column("layout", overflow="fold")
    with_mfu = any(layout["mfu"] is not None for layout in layouts)
    for column in ("s/step", "tokens/s", "x", "95%", *(["MFU"] if with_mfu else []), "GiB", "rank", "loss", "fair"):
        table.add_column(column, no_wrap=True, justify="right")
    for layout in sorted(layouts, key=lambda layout: float(layout["step_seconds"]["median"])):
        ratio, parity = layout["ratio"], layout["parity"]
        interval = "" if ratio["low"] is None else f"{ratio['low']:.2f}-{ratio['high']:.2f}"
        apart = parity["loss_difference"]
        table.add_row(
            layout["label"],
            f"{layout['step_seconds']['median']:.4g}",
            f"{layout['tokens_per_second']['median']:,.0f}",
            f"{ratio['value']:.2f}",
            interval,
            *([f"{layout['mfu']:.1%}" if layout["mfu"] is not None else ""] if with_mfu else []),
            f"{layout['peak_memory_bytes'] / 2**30:.2f}",
            str(layout["peak_memory_rank"]),
            ("not finite" if apart is None else f"{apart:.0e}") + ("" if parity["within"] else " WRONG"),
            "yes" if all(layout["fair"].values()) else "NO",
        )
    return table


def _terms(content: Mapping[str, Any]) -> str:
    verdict, parities = content["verdict"], [layout["parity"] for layout in content["layouts"] if layout["parity"]]
    if not parities:
        return "nothing was measured"
    fair = (
        "equal data, weights, tokens, settings and software in every run"
        if verdict["fair"]
        else "NOT A FAIR COMPARISON"
    )
    first = parities[0]
    tolerances = f"losses {first['tolerance']:.0e}, gradient norms {first['norm_tolerance']:.0e}"
    same = (
        f"all train the same model (within {tolerances})"
        if verdict["parity"]
        else f"PARITY FAILS (within {tolerances})"
    )
    return f"{fair}; {same}"
