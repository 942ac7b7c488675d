"""The analysis after a run: whatever becomes of it, it is a sentence and no failure of the run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchlayout.train import breakdown

RUN = Path("runs/mine")
BY_HAND = "torchlayout trace runs/mine"


@pytest.fixture
def analysis(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the analysis end with a status, and with what is on its stdout and stderr."""

    def ends(status: int, out: str = "", err: str = "") -> None:
        done = subprocess.CompletedProcess([], status, out, err)
        monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: done)

    return ends


def test_the_largest_cause_is_said(analysis: Any, tmp_path: Path) -> None:
    analysis(0, json.dumps({"causes": [{"sentence": "rank 1 is slow"}, {"sentence": "so is rank 2"}]}))
    assert breakdown.break_down(tmp_path, RUN) == f"rank 1 is slow; all: {BY_HAND}"


def test_without_a_cause_only_the_command_is_said(analysis: Any, tmp_path: Path) -> None:
    analysis(0, '{"causes": []}')
    assert breakdown.break_down(tmp_path, RUN) == f"all: {BY_HAND}"


@pytest.mark.parametrize(
    "out", ["", "[]", "null", "5", "no JSON", '{"causes": [1]}', '{"causes": [{}]}', '{"causes": 3}']
)
def test_what_makes_no_sense_is_said_to_be_broken(out: str, analysis: Any, tmp_path: Path) -> None:
    analysis(0, out)
    said = breakdown.break_down(tmp_path, RUN)
    assert said.startswith("the analysis broke (")
    assert said.endswith(f"); again: {BY_HAND}")


def test_the_last_line_of_a_failure_is_said(analysis: Any, tmp_path: Path) -> None:
    analysis(2, err="reading\nno space left\n")
    assert breakdown.break_down(tmp_path, RUN) == f"the analysis broke (no space left); again: {BY_HAND}"


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hangs(*arguments: Any, timeout: float, **options: Any) -> None:
        raise subprocess.TimeoutExpired("trace", timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    assert "timed out after 900 seconds" in breakdown.break_down(tmp_path, RUN)


def test_large_traces_are_left_to_whoever_wants_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(breakdown, "MOST_BYTES", 3)
    (tmp_path / "rank0.a.pt.trace.json.gz").write_bytes(b"four")
    (tmp_path / "rank1.a.pt.trace.json.gz").symlink_to("nowhere")
    assert breakdown.break_down(tmp_path, RUN) == f"large, and so not analysed yet: {BY_HAND}"
