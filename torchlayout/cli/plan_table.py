"""The answer of `torchlayout plan` on the terminal: what it rests on, the layouts, and one sentence."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from torchlayout.plan.search.document import Asked, Explained, Items, Plan, Predicted, Scaled, WhatIf

GIB = 2**30
MOST_RANKS = 8
MOST_COLUMNS = 10
NAMES_WIDTH, FIGURE_WIDTH = 18, 8
"""Characters of an item's name and of a figure with what is between them: only whole figures are shown."""
APART_GIB = 2.0
CAPTION = "GiB: of the worst rank; ~ within the model's error of the best; * nothing as fast needs less memory"


def print_plan(plan: Plan) -> None:
    """Prints an answer for a person, on standard output."""
    console = Console(soft_wrap=True, highlight=False)
    for line in _head(plan):
        console.print(line, style="dim", markup=False)
    if plan.layouts:
        console.print(_layouts(plan.layouts))
        first = plan.layouts[: min(MOST_COLUMNS, (console.width - NAMES_WIDTH) // FIGURE_WIDTH)]
        console.print(_items("seconds", [layout.time for layout in first], 1.0))
        console.print(_items("GiB", [layout.memory for layout in first], GIB))
        listed = {layout.label for layout in plan.layouts}
        if further := _apart([layout for layout in plan.front if layout.label not in listed], plan.layouts[0]):
            console.print(_front(plan.layouts[0], further))
    if plan.explained is not None:
        _print_explained(console, plan.explained, plan)
    if plan.what_if is not None:
        _print_what_if(console, plan.what_if)
    if plan.scaling is not None:
        console.print(_scaling(plan.scaling))
    console.print(plan.sentence, style="bold", markup=False)


def _head(plan: Plan) -> list[str]:
    asked, searched = plan.asked, plan.searched
    return [
        f"{asked.model['parameters'] / 1e9:,.3g} billion parameters, sequences of {asked.sequence_length:,}, "
        f"{asked.global_batch:,} in a step; {_devices(asked)}",
        f"software {asked.software}; calibration {asked.calibration}{_of_others(asked)}, fitted on {asked.fitted_on}",
        f"MFU: {asked.flops_convention}, against {asked.peak_flops / 1e12:,.4g} TFLOP/s "
        f"({asked.precision['parameters']})",
        f"{searched.considered:,} legal layouts, {searched.priced:,} priced, {searched.seconds:.1f} s"
        + (f"; fixed: {', '.join(asked.fixed)}" if asked.fixed else "")
        + ("; nothing fits without context parallelism" if searched.with_context and plan.layouts else ""),
    ]


def _of_others(asked: Asked) -> str:
    """Whose numbers stand in, where they are of another stack or device."""
    others = [
        theirs
        for theirs, ours in ((asked.calibrated_software, asked.software), (asked.calibrated_hardware, asked.hardware))
        if theirs not in ("", ours)
    ]
    return f" (of {' on '.join(others)}, which stands in)" if others else ""


def _devices(asked: Asked) -> str:
    return (
        f"{asked.gpus:,} x {asked.hardware}, {asked.memory_gib:.4g} GiB each, of which {asked.margin_gib:g} stay free; "
        f"nodes of {asked.gpus_per_node}, {asked.intra_node_bandwidth / 1e9:.3g} GB/s a device inside and "
        f"{asked.inter_node_bandwidth / 1e9:.3g} out"
    )


def _layouts(layouts: list[Predicted]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=CAPTION)
    table.add_column("", no_wrap=True, justify="right")
    table.add_column("layout", overflow="fold")
    for column in ("s/step", "tokens/s", "MFU", "GiB", ""):
        table.add_column(column, no_wrap=True, justify="right")
    for number, layout in enumerate(layouts, 1):
        table.add_row(
            str(number),
            layout.label,
            f"{layout.step_seconds:.4g}",
            f"{layout.tokens_per_second:,.0f}",
            f"{layout.mfu:.1%}",
            f"{layout.peak_memory_bytes / GIB:.1f}",
            "~" * (layout.tie and number > 1) + "*" * layout.on_front,
        )
    return table


def _items(title: str, costs: list[Items], unit: float) -> Table:
    """Items as rows, layouts by their numbers as columns; items that nobody has are left out."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(title, no_wrap=True)
    for number in range(1, len(costs) + 1):
        table.add_column(str(number), no_wrap=True, justify="right")
    for name in costs[0]:
        if any(items[name] for items in costs):
            table.add_row(name, *(_figure(items[name] / unit) for items in costs))
    return table


def _figure(value: float) -> str:
    return "" if value == 0 else f"{value:.0f}" if value >= 99.5 else f"{value:.3g}" if value >= 0.001 else "0.000"


def _apart(front: list[Predicted], best: Predicted) -> list[Predicted]:
    """Those of a front that need less by a good deal than the last before; a front may have a hundred."""
    kept: list[Predicted] = []
    for layout in front:
        if (kept or [best])[-1].peak_memory_bytes - layout.peak_memory_bytes >= APART_GIB * GIB:
            kept.append(layout)
    return kept


def _front(best: Predicted, further: list[Predicted]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), title="less memory for some speed", title_justify="left")
    table.add_column("layout", overflow="fold")
    for column in ("s/step", "slower", "GiB", "less"):
        table.add_column(column, no_wrap=True, justify="right")
    for layout in further:
        table.add_row(
            layout.label,
            f"{layout.step_seconds:.4g}",
            f"{layout.step_seconds / best.step_seconds - 1:.1%}",
            f"{layout.peak_memory_bytes / GIB:.1f}",
            f"{(best.peak_memory_bytes - layout.peak_memory_bytes) / GIB:.1f}",
        )
    return table


def _print_explained(console: Console, explained: Explained, plan: Plan) -> None:
    if explained.predicted is not None:
        console.print(_memory(explained.predicted))
        console.print(_time(explained.predicted, plan.layouts[0] if plan.layouts else None))
    console.print(explained.sentence, markup=False)
    console.print()


def _memory(layout: Predicted) -> Table:
    """Memory by rank and item; of a long pipeline the first ranks, the worst and the last."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), title=f"{layout.label}: GiB", title_justify="left")
    table.add_column("pipeline rank", no_wrap=True)
    ranks = list(range(len(layout.memory_by_rank)))
    if len(ranks) > MOST_RANKS:
        ranks = sorted({*ranks[: MOST_RANKS - 4], layout.worst_rank, *ranks[-3:]})
    for rank in ranks:
        table.add_column(str(rank), justify="right", no_wrap=True)
    for name in layout.memory:
        values = [layout.memory_by_rank[rank][name] / GIB for rank in ranks]
        if any(values):
            table.add_row(name, *(f"{value:.2f}" for value in values))
    table.add_row("together", *(f"{sum(layout.memory_by_rank[rank].values()) / GIB:.2f}" for rank in ranks))
    return table


def _time(layout: Predicted, best: Predicted | None) -> Table:
    """Time by item, beside that of the best."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), title=f"{layout.label}: seconds", title_justify="left")
    beside = best if best is not None and best.label != layout.label else None
    for column in ("item", "s", "part", *([beside.label] if beside else [])):
        table.add_column(column, justify="left" if column == "item" else "right")
    for name, seconds in layout.time.items():
        other = [] if beside is None else [f"{beside.time[name]:.3f}"]
        if seconds or (beside is not None and beside.time[name]):
            table.add_row(name, f"{seconds:.3f}", f"{seconds / layout.step_seconds:.1%}", *other)
    table.add_row(
        "together", f"{layout.step_seconds:.3f}", "", *([] if beside is None else [f"{beside.step_seconds:.3f}"])
    )
    return table


def _print_what_if(console: Console, what_if: WhatIf) -> None:
    for change in what_if.changes:
        if change.best is None:
            said = "nothing would fit"
        elif change.gain is None:
            said = f"{change.best} would be best; {change.note}"
        else:
            said = f"{change.best} would be best, {change.gain:.1%} faster than {change.before}"
        console.print(f"with {change.change}, {said}", markup=False)
    changed = {change.change for change in what_if.changes}
    if same := [name for name in what_if.tried if name not in changed]:
        console.print(f"the same layout is best with {'; '.join(same)}", markup=False)
    console.print()


def _scaling(scaling: list[Scaled]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), title="the best layout by GPUs", title_justify="left")
    table.add_column("GPUs", justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    for column in ("s/step", "tokens/s", "a GPU", "MFU", "efficiency"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in scaling:
        if row.label is None or row.step_seconds is None or row.tokens_per_second is None:
            table.add_row(f"{row.gpus:,}", "nothing fits")
            continue
        table.add_row(
            f"{row.gpus:,}",
            row.label,
            f"{row.step_seconds:.4g}",
            f"{row.tokens_per_second:,.0f}",
            f"{row.tokens_per_second / row.gpus:,.0f}",
            f"{row.mfu:.1%}",
            f"{row.efficiency:.1%}",
        )
    return table
