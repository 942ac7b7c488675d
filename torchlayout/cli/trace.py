"""`torchlayout trace RUN_OR_TRACES`: where each step's time went."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchlayout.errors import InputError

if TYPE_CHECKING:
    from torchlayout.trace.analyse import Analysis
    from torchlayout.trace.runs import Window


def trace(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_TRACES", help="A run, a folder of traces of its ranks, or one trace.", show_default=False
        ),
    ],
    step: Annotated[int | None, typer.Option(help="Only this step.", show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where breakdown, timeline, figures and merged trace go; a run's go beside its traces.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Traces that are read at once.")] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print breakdown.json instead of tables.")] = False,
) -> int:
    """Charge each moment of a traced step to computation, exposed communication, bubble, idle, data, ..."""
    from torchlayout.cli.progress import ByteProgress
    from torchlayout.cli.trace_table import print_breakdown
    from torchlayout.trace.analyse import analyse
    from torchlayout.trace.runs import windows

    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is no folder; name one, which need not be there")
    chosen = windows(path, step)
    documents: list[dict[str, Any]] = []
    problems: list[str] = []
    for window in chosen:
        try:
            with ByteProgress(f"reading {window.source}") as progress:
                analysis = analyse(window.source, window.known, step=step, jobs=jobs, report=progress.report)
        except InputError as error:
            if len(chosen) == 1:
                raise
            problems += error.problems
            continue
        documents.append(analysis.document)
        beside = window.source if window.run is not None and step is None else None
        folder = beside if out is None else out if len(chosen) == 1 else out / window.source.name
        if folder is not None:
            _write(analysis, window, folder)
        if not as_json:
            print_breakdown(analysis.document, folder)
            if folder is None:
                print("nothing was written: --out DIR writes the timeline, figures and the merged trace")
    if not documents:
        raise InputError(*problems)
    for problem in problems:
        print(problem, file=sys.stderr)
    if as_json:
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1, allow_nan=False))
    return 0


def _write(analysis: Analysis, window: Window, folder: Path) -> None:
    from torchlayout.trace.board import write_board

    try:
        analysis.write(folder)
        if window.run is not None and folder == window.source:
            write_board(analysis.document, window.run.tensorboard_path, (folder / "timeline.png").read_bytes())
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror or error}; choose --out") from error
