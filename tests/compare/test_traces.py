from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchlayout.compare.traces import traced_shares


def traced(run: Path, mean: object) -> Path:
    window = run / "traces" / "step_7"
    window.mkdir(parents=True)
    (window / "breakdown.json").write_text(json.dumps({"mean": mean}))
    return run


def test_shares_are_summed_by_family_and_averaged_over_runs(tmp_path: Path) -> None:
    first = traced(tmp_path / "1", {"compute/gemm": 0.5, "compute/other": 0.1, "communication/tp": 0.3, "idle": 0.1})
    second = traced(tmp_path / "2", {"compute/gemm": 0.4, "bubble/drain": 0.6})
    shares = traced_shares([first, second])
    assert shares == pytest.approx({"compute": 0.5, "communication": 0.15, "idle": 0.05, "bubble": 0.3})


@pytest.mark.parametrize("mean", [None, [], "text", {"compute/gemm": "much"}])
def test_a_breakdown_that_is_none_is_passed_over(tmp_path: Path, mean: object) -> None:
    whole = traced(tmp_path / "1", {"idle": 1.0})
    assert traced_shares([traced(tmp_path / "2", mean), whole]) == {"idle": 1.0}


def test_runs_without_traces_have_no_shares(tmp_path: Path) -> None:
    assert traced_shares([tmp_path]) is None
    assert traced_shares([]) is None


def test_half_a_breakdown_is_passed_over(tmp_path: Path) -> None:
    window = tmp_path / "traces" / "step_7"
    window.mkdir(parents=True)
    (window / "breakdown.json").write_text('{"mean": {"idle": 0.')
    assert traced_shares([tmp_path]) is None
