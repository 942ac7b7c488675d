"""Writes a study's report: report.json, report.md, report.html, figures/ and report_tensorboard/; runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchlayout.compare.report import figures, html, tensorboard
from torchlayout.compare.report.document import Report
from torchlayout.compare.report.markdown import markdown
from torchlayout.compare.report.reasons import explain
from torchlayout.files import write_atomically


def build(study_directory: str | Path) -> Path:
    """Collects what the study's runs left and writes its report; returns the path of report.html.

    Raises InputError where the folder holds no study.
    """
    from torchlayout.compare.result import collect

    return write_report(collect(Path(study_directory)), study_directory)


def write_report(collected: dict[str, Any], study_directory: str | Path) -> Path:
    """Writes the report of collected results (a version 1 report.json as a dict); returns the path of report.html."""
    directory = Path(study_directory)
    report = explain(Report.model_validate(collected))
    drawn = figures.draw(report)
    figures.save(drawn, directory / "figures")
    report = report.model_copy(update={"figures": [figure.name for figure in drawn]})
    text = markdown(report)
    # report.json first: it is what other programs read, and everything else can be made from it again.
    write_atomically(directory / "report.json", report.model_dump_json(indent=1) + "\n")
    write_atomically(directory / "report.md", text)
    page = directory / "report.html"
    write_atomically(page, html.page(report, text, drawn))
    tensorboard.write(report, text, drawn, directory / "report_tensorboard")
    return page
