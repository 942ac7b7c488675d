from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchlayout.compare.traces import Traced, traced


def left(run: Path, mean: object, window_name: str = "step_7") -> Path:
    window = run / "traces" / window_name
    window.mkdir(parents=True)
    (window / "breakdown.json").write_text(json.dumps({"mean": mean, "causes": [{"sentence": f"{run.name} is slow"}]}))
    return run


def test_shares_are_summed_by_family_and_averaged_over_runs(tmp_path: Path) -> None:
    first = left(tmp_path / "1", {"compute/gemm": 0.5, "compute/other": 0.1, "communication/tp": 0.3, "idle": 0.1})
    second = left(tmp_path / "2", {"compute/gemm": 0.4, "bubble/drain": 0.6})
    shares = traced([first, second])
    assert shares.causes == ["1 is slow"]
    assert shares.shares == pytest.approx({"compute": 0.5, "communication": 0.15, "idle": 0.05, "bubble": 0.3})


@pytest.mark.parametrize("mean", [None, [], "text", {"compute/gemm": "much"}])
def test_a_breakdown_that_is_none_is_passed_over(tmp_path: Path, mean: object) -> None:
    whole = left(tmp_path / "1", {"idle": 1.0})
    assert traced([left(tmp_path / "2", mean), whole]).shares == {"idle": 1.0}


def test_runs_without_traces_have_no_shares(tmp_path: Path) -> None:
    assert traced([tmp_path]) == Traced(None, [])
    assert traced([]) == Traced(None, [])


def test_half_a_breakdown_is_passed_over(tmp_path: Path) -> None:
    window = tmp_path / "traces" / "step_7"
    window.mkdir(parents=True)
    (window / "breakdown.json").write_text('{"mean": {"idle": 0.')
    assert traced([tmp_path]) == Traced(None, [])


def test_the_newest_window_counts_and_none_that_was_set_aside(tmp_path: Path) -> None:
    left(tmp_path, {"data": 1.0}, "step_5")
    left(tmp_path, {"idle": 1.0}, "step_10")
    left(tmp_path, {"compute/gemm": 1.0}, "step_10.earlier1")
    assert traced([tmp_path]).shares == {"idle": 1.0}


def test_shares_that_are_no_numbers_are_passed_over(tmp_path: Path) -> None:
    assert traced([left(tmp_path, {"idle": float("nan")})]) == Traced(None, [])
