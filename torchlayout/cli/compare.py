"""`torchlayout compare FILE` and `torchlayout report DIR`: run layouts side by side, and tell which is best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print report.json instead of a table.")]


def compare(
    file: Annotated[Path, typer.Argument(help="TOML file of the study.", show_default=False)],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a study, without doing done work again.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete a study of that name first.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="LABEL", help="Run this layout; may be repeated.")] = None,
    as_json: AsJson = False,
) -> int:
    """Train the layouts of a study one after the other, judge them, report; exit 1 where the comparison is no good."""
    from torchlayout.compare.runner import run_study
    from torchlayout.compare.study import Study
    from torchlayout.compare.table import view_of
    from torchlayout.data.check import corpus_problems
    from torchlayout.errors import InputError

    if resume and overwrite:
        raise InputError("--resume goes on with a study and --overwrite deletes it; give one of the two")
    study = Study.load(file)
    if problems := corpus_problems(study.base.data, study.base.model):
        raise InputError(*problems)
    with view_of(study) as view:
        run_study(study, resume=resume, overwrite=overwrite, only=only or (), view=view)
    return _report(study.directory, as_json)


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a study.", show_default=False)],
    as_json: AsJson = False,
) -> int:
    """Judge and report a study again from its files, without running anything."""
    return _report(directory, as_json)


def _report(directory: Path, as_json: bool) -> int:
    from torchlayout.compare.report.build import write_report
    from torchlayout.compare.result import collect

    content = collect(directory)
    page = write_report(content, directory)
    if as_json:
        print((directory / "report.json").read_text(encoding="utf-8"))
    else:
        from torchlayout.cli.verdict import print_verdict

        print_verdict(content)
        print(f"report: {page}")
    return exit_status(content)


def exit_status(content: dict[str, Any]) -> int:
    """0 where the comparison is good; 1 where it is unfair, where parity fails, or where nothing ran to its end."""
    return 0 if content["verdict"]["fair"] and content["verdict"]["parity"] else 1
