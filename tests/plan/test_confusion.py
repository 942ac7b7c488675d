from __future__ import annotations

from pathlib import Path

import pytest

from harness.measured_rows import prediction, runs_of
from torchlayout.plan.measured.confusion import Confusion, confusions, peak_errors
from torchlayout.plan.measured.predict import Prediction


class TestConfusion:
    """Six runs with a peak each: predicted 40, 77, 79, 85 that fitted; 79 and 90 that did not."""

    def predictions(self, tmp_path: Path) -> list[Prediction]:
        ok = [{"mem_gb": 37}, {"mem_gb": 60}, {}, {}]
        oom = [{"status": "oom", "step_time_s": ""}] * 2
        runs = runs_of(tmp_path / "a.csv", [*ok, *oom])
        peaks = (40, 77, 79, 85, 79, 102)
        return [prediction(run, peak_gib=peak) for run, peak in zip(runs, peaks, strict=True)]

    @pytest.mark.parametrize(("margin", "false_fit", "false_oom"), [(0.0, 1, 1), (2.0, 0, 2), (4.0, 0, 3)])
    def test_verdicts_by_margin(self, tmp_path: Path, margin: float, false_fit: int, false_oom: int) -> None:
        found = Confusion.of(self.predictions(tmp_path), margin)
        assert found is not None
        assert (found.rows, found.false_fit, found.false_oom) == (6, false_fit, false_oom)
        assert found.right == pytest.approx(1 - (false_fit + false_oom) / 6)

    def test_near_rows_are_those_within_20_gib_of_the_device(self, tmp_path: Path) -> None:
        found = Confusion.of(self.predictions(tmp_path), 0.0)
        assert found is not None
        assert (found.near_rows, found.near_right) == (4, pytest.approx(0.5))

    def test_three_margins_and_the_one_asked_for(self, tmp_path: Path) -> None:
        predictions = self.predictions(tmp_path)
        assert [one.margin_gib for one in confusions(predictions, 4.0)] == [0, 2, 4]
        assert [one.margin_gib for one in confusions(predictions, 3.0)] == [0, 2, 3, 4]
        assert confusions([], 4.0) == ()

    def test_a_peak_is_what_torch_reserves(self, tmp_path: Path) -> None:
        errors = peak_errors(self.predictions(tmp_path))
        assert errors is not None
        assert (errors.rows, errors.median, errors.worst) == (2, pytest.approx(14 / 60 / 2), pytest.approx(14 / 60))

    def test_the_peak_of_a_run_that_is_not_trusted_does_not_count(self, tmp_path: Path) -> None:
        (run,) = runs_of(tmp_path / "a.csv", [{"mem_gb": 20, "trust": "pp>1 before the PP fix"}])
        assert peak_errors([prediction(run)]) is None
