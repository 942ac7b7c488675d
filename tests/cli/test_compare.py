from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.studies import processes_of, study_file
from torchlayout.cli import main
from torchlayout.compare.runner import run_study
from torchlayout.compare.state import RunRecord, StudyState
from torchlayout.compare.study import Study
from torchlayout.compare.table import LiveView, span, time_left


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchlayout", *map(str, arguments)],
        env=os.environ | {"COLUMNS": "160", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def outcome(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_real_layouts_are_trained_judged_and_reported_and_one_runs_out_of_memory(
    small_corpus: Path, tmp_path: Path
) -> None:
    layouts = ["fsdp2+mb2", "fsdp2+mb8+math", "pp2+mb2"]
    file = study_file(
        tmp_path, layouts, small_corpus, fake=False, steps=2, host_memory_limit_gib=0.65, timeout_seconds=200
    )
    text = file.read_text().replace("sequence_length = 32", "sequence_length = 512")
    file.write_text(text.replace("global_size = 8", "global_size = 16"))
    done = command("compare", file)
    directory = tmp_path / "studies" / "study"
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((directory / "report.json").read_text())
    assert [layout["status"] for layout in content["layouts"]] == ["ok", "oom", "ok"]
    assert (content["verdict"]["fair"], content["verdict"]["parity"]) == (True, True)
    assert content["layouts"][2]["parity"]["loss_difference"] < 1e-6
    assert "(train.host_memory_limit_gib = 0.65 for each rank)" in content["layouts"][1]["reason"]
    assert "fsdp2+mb8+math: oom: out of memory: " in done.stdout
    assert " is fastest: " in done.stdout
    assert (directory / "report.html").exists()
    assert processes_of(file) == []


class TestFake:
    """The command over the fake training."""

    def test_losers_are_named_and_the_exit_status_is_0(
        self, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        told = {"tp2": {"do": "crash"}, "pp2": {"speed": 0.5}}
        file = study_file(tmp_path, ["fsdp2", "tp2", "pp2", "fsdp4"], small_corpus)
        done = command("compare", file, FAKE_BEHAVIOUR=json.dumps(told))
        assert done.returncode == 0, done.stderr
        assert (
            "tp2: failed: ValueError: planted (after 2 of 4 steps; see tp2/repeat_1/logs/torchrun.log)" in done.stdout
        )
        assert "fsdp4: skipped: layout fsdp4 is for 4 ranks, and the study has 2" in done.stdout
        assert "pp2 is fastest: 2.00x the speed of the baseline fsdp2" in done.stdout
        assert "equal data, weights, tokens, settings and software in every run" in done.stdout
        lines = done.stderr.splitlines()
        assert lines[0].startswith("fsdp4: skipped: ")
        assert lines[1] == "[1/3] fsdp2, repeat 1: running"
        assert lines[2].startswith("[1/3] fsdp2, repeat 1: ok, 1.03 s a step, 62 tokens/s (took ")

        assert outcome("report", tmp_path / "studies" / "study", "--json") == 0
        assert json.loads(capsys.readouterr().out)["verdict"]["best"] == "pp2"

    def test_a_failed_verdict_is_exit_status_1(
        self, small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("FAKE_BEHAVIOUR", json.dumps({"tp2": {"grad_norm": 7.0}}))
        file = study_file(tmp_path, ["fsdp2", "tp2"], small_corpus)
        assert outcome("compare", file) == 1
        out = capsys.readouterr().out
        assert "PARITY FAILS" in out
        assert "tp2, repeat 1: the gradient norm of step 4 differs from that of fsdp2" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "none.toml"], "none.toml cannot be read"),
        (["compare", "FILE", "--resume", "--overwrite"], "give one of the two"),
        (["compare", "FILE"], "does not exist; make it with: torchlayout data prepare"),
        (["report", "none"], "none holds no study"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = study_file(tmp_path, ["fsdp2"], corpus="nowhere")
    assert outcome(*(str(file) if argument == "FILE" else argument for argument in arguments)) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_the_driver_loads_no_torch(tmp_path: Path) -> None:
    file = study_file(tmp_path, ["fsdp2"])
    code = (
        "import sys; from torchlayout.compare import result, runner, study, table\n"
        f"s = study.Study.load({str(file)!r}); runner.run_study(s); result.collect(s.directory)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False\n", done.stderr


class TestTable:
    """The live table, drawn at one moment."""

    def drawn(self, view: LiveView, state: StudyState, running: RunRecord | None) -> str:
        console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(view.table(state, running, 3.0))
        return console.export_text()

    def test_it_shows_what_is_done_what_runs_what_failed_and_the_time_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_BEHAVIOUR", json.dumps({"tp2": {"do": "crash"}}))
        study = Study.load(study_file(tmp_path, ["fsdp2", "tp2", "pp2", "fsdp4"]))
        state = run_study(study, only=["fsdp2", "tp2"])
        running = state.update(state.of("pp2")[0], status="running")
        for run in state.runs[:2]:
            state.update(run, seconds=50.0)
        text = self.drawn(LiveView(study, Console(width=100, height=40)), state, running)
        rows = [line.split() for line in text.splitlines()]
        assert ["fsdp2", "1/1", "ok", "1.03", "62", "1.00"] in rows
        assert ["tp2", "1/1", "failed"] in rows
        assert ["pp2", "0/1", "running", "0/4", "steps,", "3", "s"] in rows
        assert ["fsdp4", "0/0", "skipped"] in rows
        assert "2 of 3 runs done; about 47 s left" in text

    def test_it_fits_the_terminal_and_keeps_what_runs_in_sight(self, tmp_path: Path) -> None:
        labels = [f"fsdp2+mb{n}" for n in (1, 2, 4)] + [f"tp2+mb{n}" for n in (1, 2, 4, 8)]
        labels += [f"dp2+mb{n}" for n in (1, 2, 4)]
        study = Study.load(study_file(tmp_path, labels))
        runs = [RunRecord(label, 1) for label in [str(planned.label) for planned in study.layouts]]
        state = StudyState.new(tmp_path / "study.json", runs)
        running = state.update(state.of("dp2+mb4")[0], status="running")
        text = self.drawn(LiveView(study, Console(width=100, height=14)), state, running)
        assert "dp2+mb4" in text
        assert sum(f" {label} " in text for label in labels) <= 6


def test_the_time_left_is_that_of_runs_like_those_that_are_done() -> None:
    def state(*runs: Any) -> StudyState:
        return StudyState.new(Path("nowhere"), runs)

    assert time_left(state(RunRecord("a", 1)), 0.0) is None
    done = RunRecord("a", 1, "ok", seconds=10.0), RunRecord("b", 1, "ok", seconds=30.0)
    left = RunRecord("a", 2), RunRecord("b", 2, "running"), RunRecord("c", 1)
    assert time_left(state(*done, *left), 5.0) == 10 + 30 + 20 - 5


@pytest.mark.parametrize(("seconds", "text"), [(41.2, "41 s"), (240, "4 min"), (11_520, "3.2 h")])
def test_a_duration_is_for_a_person(seconds: float, text: str) -> None:
    assert span(seconds) == text
