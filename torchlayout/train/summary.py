"""A table of finished runs, side by side.

python -m torchlayout.train.summary runs/quickstart/*
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from torchlayout.errors import InputError
from torchlayout.records import RunDirectory

FIGURES = ("steps", "first\nloss", "last\nloss", "data", "weights", "tokens/s", "peak\nGiB")


def summary(directories: Sequence[Path]) -> Table:
    """One row for each run; data and weights are judged against the first run.

    tokens/s is the median over the steps after the first, which warms up. Raises InputError for a folder without steps.
    """
    runs = [_read(directory) for directory in directories]
    first_run, first_steps = runs[0]
    table = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        caption="data: batch digests of the steps that both have; weights: the initial ones; memory: the worst rank",
    )
    # In 80 columns a long label folds; a figure must never be cut.
    table.add_column("layout", overflow="fold")
    for column in FIGURES:
        table.add_column(column, no_wrap=True)
    layouts = [run["layout"] for run, _ in runs]
    for directory, (run, steps) in zip(directories, runs, strict=True):
        speeds = [step["tokens_per_second"] for step in steps[1:] or steps]
        table.add_row(
            run["layout"] if layouts.count(run["layout"]) == 1 else f"{run['layout']} ({directory.name})",
            str(len(steps)),
            _loss(steps[0]),
            _loss(steps[-1]),
            _judged(steps, first_steps),
            "equal" if run["initial_weights_digest"] == first_run["initial_weights_digest"] else "DIFFERENT",
            f"{statistics.median(speeds):,.0f}",
            f"{max(step['peak_memory_bytes'] for step in steps) / 2**30:.2f}",
        )
    return table


def _read(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    files = RunDirectory(directory)
    steps = files.metrics()
    if not steps:
        raise InputError(f"{directory} holds no steps of a run; give folders that training wrote, such as runs/run")
    return files.read_run(), steps


def _judged(steps: list[dict[str, Any]], first: list[dict[str, Any]]) -> str:
    """Whether two runs consumed the same in every step that both have."""
    ours, theirs = ({step["step"]: step["batch_digest"] for step in of_run} for of_run in (steps, first))
    common = ours.keys() & theirs.keys()
    if not common:
        return "no common step"
    return "equal" if all(ours[step] == theirs[step] for step in common) else "DIFFERENT"


def _loss(step: dict[str, Any]) -> str:
    return "not finite" if step["loss"] is None else f"{step['loss']:.6f}"


def main(runs: Annotated[list[Path], typer.Argument(help="Run directories.", show_default=False)]) -> None:
    """Print runs side by side: losses, whether they saw the same data, speed and memory."""
    try:
        Console().print(summary(runs))
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    typer.run(main)
