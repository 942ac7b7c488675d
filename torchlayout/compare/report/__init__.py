"""The report of a study, for people (Markdown, one HTML page, TensorBoard) and for programs (report.json)."""

from torchlayout.compare.report.build import build, write_report

__all__ = ["build", "write_report"]
