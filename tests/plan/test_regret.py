from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.measured_rows import prediction, runs_of
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.measured.baselines import BLIND_MFU, baselines, rule_of_thumb, scaled
from torchlayout.plan.measured.predict import Machines, Prediction, predict
from torchlayout.plan.measured.regret import Regret, fastest


class TestRegret:
    """A setting with layouts of measured MFU 50, 40 and 30, and one out of memory."""

    def setting(self, tmp_path: Path, predicted: Sequence[tuple[float, float]], **change: object) -> list[Prediction]:
        rows: list[dict[str, object]] = [{"mfu": mfu, "step_time_s": 100 / mfu} for mfu in (50, 40, 30)]
        rows.append({"status": "oom", "step_time_s": ""})
        runs = runs_of(tmp_path / "a.csv", [row | change for row in rows])
        return [prediction(run, *said) for run, said in zip(runs, predicted, strict=True)]

    def test_the_pick_is_held_against_the_best(self, tmp_path: Path) -> None:
        said = self.setting(tmp_path, [(3.0, 40), (2.0, 40), (4.0, 40), (5.0, 40)])
        found = Regret.of(said, 4.0, fastest)
        assert found is not None
        assert (found.settings, found.oom_picks, found.no_picks) == (1, 0, 0)
        assert (found.mean_points, found.mean_part) == (pytest.approx(10), pytest.approx(0.2))
        assert (found.top3_mean_points, found.top3_mean_part) == (pytest.approx(0), pytest.approx(0))

    def test_only_layouts_predicted_to_fit_with_the_margin_are_picked(self, tmp_path: Path) -> None:
        said = self.setting(tmp_path, [(1.0, 77), (2.0, 40), (3.0, 40), (4.0, 85)])
        with_margin, without = Regret.of(said, 4.0, fastest), Regret.of(said, 0.0, fastest)
        assert with_margin is not None
        assert without is not None
        assert (with_margin.mean_points, without.mean_points) == (pytest.approx(10), pytest.approx(0))
        assert (with_margin.top3_mean_points, without.top3_mean_points) == (pytest.approx(10), pytest.approx(0))

    def test_a_pick_out_of_memory_is_a_failure_in_no_mean(self, tmp_path: Path) -> None:
        found = Regret.of(self.setting(tmp_path, [(3.0, 40), (2.0, 40), (4.0, 40), (1.0, 40)]), 4.0, fastest)
        assert found is not None
        assert (found.oom_picks, found.mean_points, found.worst_points) == (1, None, None)
        assert found.top3_mean_points == pytest.approx(0)

    def test_where_nothing_is_predicted_to_fit_there_is_no_pick(self, tmp_path: Path) -> None:
        found = Regret.of(self.setting(tmp_path, [(1.0, 90)] * 4), 4.0, fastest)
        assert found is not None
        assert (found.no_picks, found.oom_picks, found.mean_points, found.top3_mean_points) == (1, 0, None, None)

    def test_nothing_is_gained_by_a_tie(self, tmp_path: Path) -> None:
        said = self.setting(tmp_path, [(1.0, 40), (1.0, 40), (1.0, 40), (2.0, 40)])
        found = Regret.of(said, 4.0, fastest)
        assert found is not None
        assert found.mean_points == pytest.approx(20)

    def test_rows_that_are_not_trusted_are_no_candidates(self, tmp_path: Path) -> None:
        assert Regret.of(self.setting(tmp_path, [(1.0, 40)] * 4, trust="slow fabric"), 4.0, fastest) is None

    def test_settings_are_apart(self, tmp_path: Path) -> None:
        rows: list[dict[str, object]] = [{"gbs": gbs, "mfu": mfu} for gbs in (2048, 1024) for mfu in (40, 50)]
        runs = runs_of(tmp_path / "a.csv", [*rows, {"gbs": 512}])
        found = Regret.of([prediction(run, seconds=index) for index, run in enumerate(runs, 1)], 4.0, fastest)
        assert found is not None
        assert (found.settings, found.mean_points) == (2, pytest.approx(10))

    def test_mfu_that_the_source_leaves_out_is_computed(self, tmp_path: Path) -> None:
        runs = runs_of(tmp_path / "a.csv", [{"step_time_s": 200}, {"step_time_s": 250}])
        assert [prediction(run).measured_mfu for run in runs] == [pytest.approx(50), pytest.approx(40)]


class TestBaselines:
    """What needs no planner."""

    def test_a_constant_mfu(self, tmp_path: Path) -> None:
        runs = runs_of(tmp_path / "a.csv", [{"step_time_s": 200}, {"step_time_s": 250}, {"step_time_s": 400}])
        blind = baselines([prediction(run) for run in runs])["constant MFU of 45%"]
        assert {one.seconds for one in blind} == {100 / BLIND_MFU}
        assert [one.seconds for one in scaled(blind)] == [pytest.approx(250)] * 3

    def test_the_bubble_and_recomputation_cost_their_part(self, tmp_path: Path) -> None:
        rows = [{"pp": 1, "dp": 32}, {"pp": 4, "dp": 8, "gbs": 32}, {"pp": 1, "dp": 32, "recompute": "full"}]
        runs = runs_of(tmp_path / "a.csv", rows)
        predictions, _ = predict(runs, Machines(Calibration()))
        plain, piped, recomputed = baselines(predictions)["6N + bubble at 45% of the peak"]
        assert recomputed.seconds == pytest.approx(plain.seconds * 8 / 6)
        assert piped.seconds == pytest.approx(plain.seconds / 64 * (1 + 3 / 4))

    def test_the_rule_of_thumb(self, tmp_path: Path) -> None:
        rows = [
            {"tp": 2, "pp": 1, "dp": 32, "recompute": "full"},
            {"tp": 1, "pp": 1, "dp": 64, "mbs": 2},
            {"tp": 4, "pp": 1, "dp": 16},
            {"tp": 2, "pp": 1, "dp": 32},
            {"tp": 1, "pp": 2, "dp": 32, "attention": "unfused"},
            {"tp": 1, "pp": 2, "dp": 32, "norm": "eager"},
            {"tp": 1, "pp": 2, "dp": 32},
        ]
        liked = rule_of_thumb([prediction(run) for run in runs_of(tmp_path / "a.csv", rows)])
        assert [one.run.place.rsplit(" ", 1)[1] for one in liked] == ["8", "7", "6", "5", "4"]
