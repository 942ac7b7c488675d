from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.measured_rows import published, runs_of, write_rows
from torchlayout.cli import main
from torchlayout.errors import InputError
from torchlayout.plan.calibration import PARTS, Calibration, replaced, spreads, values
from torchlayout.plan.measured.crossed import crossed
from torchlayout.plan.measured.fit import Fit, Number, fit, free_numbers, usable
from torchlayout.plan.measured.predict import Machines, peak_bytes_of, predict, reserved_bytes_of, seconds_of
from torchlayout.plan.measured.runs import Run, read_runs
from torchlayout.plan.memory.peak import GIB

needs_scipy = pytest.mark.skipif(find_spec("scipy") is None, reason="fitting needs torchlayout[plan]")
PLANTED = {"compute.gemm_efficiency": 0.72, "links.hop_efficiency": 0.1}
SHAPES: list[dict[str, object]] = [
    {"tp": tp, "pp": pp, "dp": 64 // (tp * pp), "mbs": mbs, "seq": 2048, "recompute": recompute}
    for tp in (1, 2, 4)
    for pp in (1, 2)
    for mbs in (1, 2)
    for recompute in ("none", "full")
]


def planted(tmp_path: Path, numbers: Mapping[str, float] = PLANTED) -> list[dict[str, object]]:
    """Rows whose step times and peaks are those of the planner with some numbers planted."""
    machines = Machines(replaced(Calibration(), dict(numbers)))
    runs = runs_of(tmp_path / "shapes.csv", SHAPES)
    times = [seconds_of(machines.of(run), run.job) for run in runs]
    peaks = [reserved_bytes_of(machines.of(run), run.job) / GIB for run in runs]
    return [row | {"step_time_s": time, "mem_gb": peak} for row, time, peak in zip(SHAPES, times, peaks, strict=True)]


def fitted(rows: list[Run], *free: str) -> dict[str, Number]:
    return {number.name: number for number in fit(usable(rows), free or tuple(PLANTED)).numbers}


def way(number: Number) -> float:
    """How much of the way from its prior to the planted value a number went; the prior holds it back a little."""
    return math.log(number.fitted / number.prior) / math.log(PLANTED[number.name] / number.prior)


def outcome(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "fit", *map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@needs_scipy
class TestPlanted:
    """Numbers that were planted are found."""

    def test_a_fit_finds_planted_numbers(self, tmp_path: Path) -> None:
        numbers = fitted(runs_of(tmp_path / "a.csv", planted(tmp_path)))
        for name in PLANTED:
            assert way(numbers[name]) == pytest.approx(1, abs=0.1), name
            assert numbers[name].identified == "yes"

    def test_outliers_hardly_move_it(self, tmp_path: Path) -> None:
        rows = planted(tmp_path)
        for row in rows[::8]:
            row["step_time_s"] = 3 * float(str(row["step_time_s"]))
        numbers = fitted(runs_of(tmp_path / "a.csv", rows))
        for name in PLANTED:
            assert way(numbers[name]) == pytest.approx(1, abs=0.25), name

    def test_times_that_are_not_trusted_and_rows_without_a_result_count_nothing(self, tmp_path: Path) -> None:
        rows = planted(tmp_path)
        flagged: list[dict[str, object]] = [row | {"step_time_s": 1, "trust": "slow fabric"} for row in rows]
        nothing: list[dict[str, object]] = [{"status": "error", "step_time_s": ""}]
        clean = fit(usable(runs_of(tmp_path / "a.csv", rows)), tuple(PLANTED))
        mixed = fit(usable(runs_of(tmp_path / "b.csv", [*flagged, *rows, *nothing])), tuple(PLANTED))
        assert mixed == clean

    def test_memory_is_fitted_on_peaks(self, tmp_path: Path) -> None:
        rows = planted(tmp_path, {"memory.logit_bytes": 25.0})
        numbers = fitted(runs_of(tmp_path / "a.csv", rows), "memory.logit_bytes")
        assert numbers["memory.logit_bytes"].fitted == pytest.approx(25.0, rel=0.02)

    @pytest.mark.parametrize(("status", "sign"), [("oom", 1), ("ok", -1)])
    def test_verdicts_alone_move_memory_to_their_side(self, tmp_path: Path, status: str, sign: int) -> None:
        machines = Machines(Calibration())
        runs = runs_of(tmp_path / "shapes.csv", SHAPES)
        room = {run.place: run.hardware.memory_gib - peak_bytes_of(machines.of(run), run.job) / GIB for run in runs}
        wrong = [(row, run) for row, run in zip(SHAPES, runs, strict=True) if 0 < sign * room[run.place] < 25]
        assert wrong, "no shape is near the device's memory on the wrong side"
        rows = [row | {"status": status, "step_time_s": "" if status == "oom" else 1} for row, _ in wrong]
        number = fitted(runs_of(tmp_path / "a.csv", rows), "memory.fragmentation")["memory.fragmentation"]
        assert sign * number.moved > 0.2

    def test_the_spread_of_the_residuals_is_kept(self, tmp_path: Path) -> None:
        rows = planted(tmp_path)
        exact = fit(usable(runs_of(tmp_path / "a.csv", rows)), tuple(PLANTED)).calibration
        for index, row in enumerate(rows):
            row["step_time_s"] = float(str(row["step_time_s"])) * math.exp(0.06 if index % 2 else -0.06)
        noisy = fit(usable(runs_of(tmp_path / "b.csv", rows)), tuple(PLANTED)).calibration
        assert exact.time_spread < 0.01
        assert noisy.time_spread == pytest.approx(1.4826 * 0.06, rel=0.25)

    def test_a_number_that_the_rows_do_not_touch_stays_at_its_prior(self, tmp_path: Path) -> None:
        numbers = fitted(runs_of(tmp_path / "a.csv", planted(tmp_path)), *PLANTED, "compute.flash1")
        assert (numbers["compute.flash1"].identified, numbers["compute.flash1"].moved) == (
            "no",
            pytest.approx(0, abs=1e-5),
        )

    def test_numbers_that_are_not_free_stay_at_the_base(self, tmp_path: Path) -> None:
        base = replaced(Calibration(), {"launch.step_seconds": 2.0, "compute.flash1": 0.4})
        rows = usable(runs_of(tmp_path / "a.csv", planted(tmp_path)))
        found = fit(rows, ("compute.gemm_efficiency",), base).calibration
        assert {name for name, value in values(found).items() if value != values(base)[name]} == {
            "compute.gemm_efficiency"
        }

    def test_a_value_left_out_in_turn_is_predicted_by_the_rest(self, tmp_path: Path) -> None:
        rows = usable(runs_of(tmp_path / "a.csv", planted(tmp_path)))
        folds = list(crossed(rows, "tp", tuple(PLANTED)))
        assert [(fold.value, fold.fitted_rows) for fold in folds] == [("1", 16), ("2", 16), ("4", 16)]
        for fold in folds:
            assert fold.method.time is not None
            assert fold.method.time.rows == 8
            assert fold.method.time.worst < 0.05
            assert fold.peak is not None


class TestRows:
    """Which rows a fit takes."""

    def test_rows_of_two_stacks_are_refused(self, tmp_path: Path) -> None:
        runs = runs_of(tmp_path / "a.csv", [{}, {"source": "nanotron"}])
        with pytest.raises(
            InputError, match=r"rows are of 2 stacks \(nanotron, scaling-2311\.05610\) and a calibration"
        ):
            usable(runs)

    def test_no_row_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="none of 1 rows can be fitted on"):
            usable(runs_of(tmp_path / "a.csv", [{"status": "error", "step_time_s": ""}]))


class TestFree:
    """--free."""

    def test_words_name_numbers(self) -> None:
        everything = set(spreads())
        assert set(free_numbers("all")) == everything
        assert set(free_numbers("time")) | set(free_numbers("memory")) == everything
        assert not set(free_numbers("time")) & set(free_numbers("memory"))
        assert set(free_numbers("links")) == {name for name in everything if name.startswith("links.")}
        assert free_numbers("links.overlap, compute.gemm_efficiency,links.overlap") == (
            "links.overlap",
            "compute.gemm_efficiency",
        )
        assert set(free_numbers(",".join(PARTS))) == everything

    def test_an_unknown_word_is_a_sentence(self) -> None:
        with pytest.raises(InputError, match=r"--free link names no number; did you mean links\?"):
            free_numbers("link")

    def test_numbers_of_memory_move_memory_alone_and_all_others_time_alone(self, tmp_path: Path) -> None:
        rows: list[dict[str, object]] = [
            {
                "attention": attention,
                "norm": norm,
                "recompute": recompute,
                "sp": sp,
                "source": source,
                "sharding": sharding,
            }
            for attention, norm in (("unfused", "eager"), ("fused-softmax", "fused"), ("flash1", "fused"))
            for recompute, sp in (("none", "True"), ("full", "False"))
            for source, sharding in (("arXiv 2311.05610", "zero1"), ("nanotron", "none"))
        ]
        runs = runs_of(tmp_path / "a.csv", rows)
        before = Machines(Calibration())
        for name, value in values(Calibration()).items():
            after = Machines(replaced(Calibration(), {name: 1.01 * value}))
            for run in runs:
                if name.startswith("memory."):
                    assert seconds_of(after.of(run), run.job) == seconds_of(before.of(run), run.job), name
                else:
                    assert peak_bytes_of(after.of(run), run.job) == peak_bytes_of(before.of(run), run.job), name


class TestCommand:
    """torchlayout plan fit."""

    @needs_scipy
    def test_it_writes_a_calibration_that_says_what_it_was_fitted_on(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, out = write_rows(tmp_path / "a.csv", planted(tmp_path)), tmp_path / "mine.toml"
        assert outcome(path, "--out", out, "--free", ",".join(PLANTED), "--leave-out", "tp=4 pp=2") == 0
        found = Calibration.load(str(out))
        assert (found.name, found.software, found.hardware) == ("mine", "scaling-2311.05610", "a100-sxm-80gb")
        assert found.fitted_on == (
            "a.csv, 20 rows (20 step times, 0 peaks, 0 verdicts): "
            f"torchlayout plan fit {path} --out {out} --leave-out 'tp=4 pp=2' --free {','.join(PLANTED)}"
        )
        assert values(found)["compute.gemm_efficiency"] == pytest.approx(0.72, rel=0.01)
        printed = capsys.readouterr().out
        assert "compute.gemm_efficiency" in printed
        assert f"{out}: fitted on 20 step times, 0 peaks, 0 verdicts" in printed

    @needs_scipy
    def test_a_second_fit_keeps_what_the_first_one_fitted(self, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "a.csv", planted(tmp_path))
        first, second = tmp_path / "first.toml", tmp_path / "second.toml"
        assert outcome(path, "--out", first, "--free", "compute.gemm_efficiency") == 0
        assert outcome(path, "--out", second, "--free", "memory.fragmentation", "--calibration", first) == 0
        before, after = Calibration.load(str(first)), Calibration.load(str(second))
        assert after.compute == before.compute
        assert after.time_spread == before.time_spread
        assert f"; other numbers from first: {before.fitted_on}" in after.fitted_on

    @needs_scipy
    def test_a_column_is_crossed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_rows(tmp_path / "a.csv", planted(tmp_path))
        assert outcome(path, "--cross", "tp", "--free", "compute.gemm_efficiency") == 0
        assert "error on rows of one tp, fitted on the others" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["none.csv", "--out", "c.toml"], "none.csv cannot be read: No such file or directory"),
            (["a.csv"], "plan fit has nothing to do: give --out FILE.toml, --cross COLUMN or both"),
            (["a.csv", "--out", "c.json"], "--out c.json is no name of a calibration; legal: FILE.toml"),
            (["a.csv", "--out", "c.toml", "--free", "speed"], "--free speed names no number; "),
            (["a.csv", "--cross", "gpus"], "--cross gpus: all rows have 64; give a column of several values"),
            (["a.csv", "--cross", "gpu_count"], "--cross gpu_count: no such column in every file; did you mean gpu"),
        ],
    )
    def test_what_is_wrong_is_a_sentence_and_exit_status_2(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        sentence: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_rows(Path("a.csv"), [{}, {"mbs": 2}])
        assert outcome(*arguments) == 2
        assert capsys.readouterr().err.startswith(sentence)
        assert not Path("c.toml").exists()

    def test_without_scipy_it_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        path = write_rows(tmp_path / "a.csv", [{}])
        assert outcome(path, "--out", tmp_path / "c.toml") == 2
        assert capsys.readouterr().err == (
            "plan fit needs scipy, which is not installed; pip install torchlayout[plan]\n"
        )


@needs_scipy
def test_on_a_sheet_of_the_study_a_fit_halves_the_error_of_the_priors() -> None:
    runs = [run for run in read_runs(published("llama_a100_hagemann2023.csv")) if "(sp/13B@8192)" in run.source]
    rows = usable(runs)

    def median(calibration: Calibration) -> float:
        from torchlayout.plan.measured.accuracy import method

        errors = method(predict(rows, Machines(calibration))[0], 4.0).time
        assert errors is not None
        return errors.median

    found: Fit = fit(rows, ("compute.gemm_efficiency", "links.tensor_efficiency", "compute.logit_bytes"))
    assert (found.rows, found.time_rows, found.verdict_rows) == (21, 21, 0)
    assert median(found.calibration) < 0.7 * median(Calibration())
