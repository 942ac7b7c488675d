from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.measured_rows import prediction, published, runs_of, write_rows
from torchlayout.cli import main
from torchlayout.errors import InputError
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.estimate import Estimate, Machine
from torchlayout.plan.job import Job
from torchlayout.plan.measured.accuracy import Accuracy, LeftOut, judge, method, schema
from torchlayout.plan.measured.runs import read_runs

ROOT = Path(__file__).parents[2]


def outcome(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "accuracy", *map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


class TestJudge:
    """Sheets over small files."""

    def test_rows_that_do_not_count_are_told_with_why(self, tmp_path: Path) -> None:
        oom = {"status": "oom", "step_time_s": ""}
        rows = [
            {},
            oom,
            {"trust": "slow fabric"},
            oom | {"trust": "slow fabric"},
            {"status": "error", "step_time_s": ""},
            {"step_time_s": "", "mem_gb": 30},
        ]
        (sheet,) = judge(runs_of(tmp_path / "a.csv", rows), Calibration(), 4.0)
        assert sheet.rows == 6
        assert sheet.planner.time is not None
        assert sheet.planner.time.rows == 1
        assert {(left.rows, left.of, left.why) for left in sheet.left_out} == {
            (2, "time", "out of memory"),
            (1, "time", "trust: slow fabric"),
            (1, "time", "no step time"),
            (1, "time and memory", "status error: no result"),
        }
        assert [sheet.memory[0].rows, sheet.memory_trusted[0].rows] == [5, 3]
        assert sheet.calibrations == ("priors: nothing: priors alone",)

    def test_a_row_that_is_no_job_is_left_out_with_the_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        estimate = Machine.estimate

        def refuse(machine: Machine, job: Job) -> Estimate:
            if job.layout.micro_batch == 2:
                raise InputError("it can't be")
            return estimate(machine, job)

        monkeypatch.setattr(Machine, "estimate", refuse)
        (sheet,) = judge(runs_of(tmp_path / "a.csv", [{}, {"mbs": 2}]), Calibration(), 4.0)
        assert sheet.left_out == (LeftOut(rows=1, of="time and memory", why="no job that can be priced: it can't be"),)
        assert (sheet.rows, sheet.memory[0].rows) == (2, 1)

    def test_a_sheet_a_source_and_one_of_all(self, tmp_path: Path) -> None:
        sources = [f"arXiv 2311.05610 data ({name})" for name in ("a", "b")]
        runs = runs_of(tmp_path / "a.csv", [{"source": source, "mbs": mbs} for source in sources for mbs in (1, 2)])
        sheets = judge(runs, Calibration(), 4.0)
        assert [sheet.source for sheet in sheets] == [*sources, "all"]
        assert [sheet.rows for sheet in sheets] == [2, 2, 4]

    def test_predictions_that_are_right_have_no_error(self, tmp_path: Path) -> None:
        runs = runs_of(tmp_path / "a.csv", [{"step_time_s": 10 + mbs, "mbs": mbs} for mbs in (1, 2, 4, 8)])
        found = method([prediction(run, seconds=run.step_seconds or 0) for run in runs], 4.0)
        assert found.time is not None
        assert (found.time.worst, found.spearman, found.spearman_in_groups) == (0, 1, 1)
        assert found.regret is not None
        assert found.regret.mean_points == 0

    def test_groups_are_ranked_apart(self, tmp_path: Path) -> None:
        rows = [{"model": model, "mbs": mbs} for model in ("a", "b") for mbs in (1, 2, 4)]
        runs = runs_of(
            tmp_path / "a.csv", [row | {"step_time_s": s} for row, s in zip(rows, (1, 2, 3, 7, 8, 9), strict=True)]
        )
        mine = (21, 22, 23, 13, 12, 11)
        found = method([prediction(run, seconds) for run, seconds in zip(runs, mine, strict=True)], 4.0)
        assert found.spearman_in_groups == pytest.approx(0)
        assert found.spearman is not None
        assert found.spearman < 0


class TestCommand:
    """torchlayout plan accuracy."""

    def test_json_is_of_the_published_schema(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_rows(tmp_path / "a.csv", [{"mbs": mbs} for mbs in (1, 2, 4)])
        arguments = ("--json", "--only", "mbs=1,2", "--leave-out", "mbs=2 tp=2", "--calibration", "priors")
        assert outcome(path, *arguments) == 0
        text = capsys.readouterr().out
        result = Accuracy.model_validate_json(text)
        assert (result.version, result.files, result.margin_gib) == (1, (str(path),), 4.0)
        assert (result.only, result.leave_out, result.sheets[0].rows) == (("mbs=1,2",), ("mbs=2 tp=2",), 1)
        assert json.loads(text).keys() == set(schema()["properties"])

    def test_the_published_schema_is_that_of_the_code(self) -> None:
        file = ROOT / "docs" / "plan-accuracy.schema.json"
        write_it_again = "import json; from torchlayout.plan.measured.accuracy import schema; "
        write_it_again += "print(json.dumps(schema(), indent=2))"
        assert json.loads(file.read_text()) == schema(), (
            f"python -c '{write_it_again}' > docs/plan-accuracy.schema.json"
        )

    def test_tables_and_a_plot(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rows = [{"mbs": mbs, "mem_gb": 30} for mbs in (1, 2, 4)]
        path = write_rows(tmp_path / "a.csv", [*rows, {"status": "oom", "step_time_s": ""}])
        assert outcome(path, "--plot", tmp_path / "new" / "p.png") == 0
        out = capsys.readouterr().out
        assert "arXiv 2311.05610 data (test): 4 rows; scaling-2311.05610 on a100-sxm-80gb" in out
        assert "1 rows left out of time: out of memory" in out
        assert "no checkpointing, micro-batch 1, smallest tp x pp that fits" in out
        assert (tmp_path / "new" / "p.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["none.csv"], "none.csv cannot be read: No such file or directory"),
            (["a.csv", "--plot", "p.gif"], "--plot p.gif is of no known format; legal: FILE.png, FILE.svg, FILE.pdf"),
            (["a.csv", "--hardware", "a100"], 'hardware.name = "a100" is neither a device nor a .toml file'),
            (["a.csv", "--software", "ours"], 'software "ours" is neither a profile nor a .toml file'),
            (["a.csv", "--calibration", "best"], 'calibration "best" is neither shipped nor a .toml file'),
            (["a.csv", "--only", "gpus=7"], "--only gpus=7 is met by no row; rows have: 64"),
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
        write_rows(Path("a.csv"), [{}])
        assert outcome(*arguments) == 2
        assert capsys.readouterr().err.startswith(sentence)


def test_on_the_study_the_planner_with_priors_alone_beats_what_needs_no_planner() -> None:
    runs = read_runs(published("llama_a100_hagemann2023.csv"))
    sheet = judge(runs, Calibration(), 4.0)[-1]
    assert sheet.planner.time is not None
    assert sheet.planner.time.rows == 243
    assert sheet.memory[0].rows == 243 + 345
    for rival in sheet.baselines:
        if rival.scaled is not None:
            assert sheet.planner.time.median < rival.scaled.median / 2
            assert (sheet.planner.spearman or 0) > (rival.method.spearman or 0)
