from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from harness.studies import driver, processes_of, study_file, table, wait_until
from torchlayout.compare.runner import run_study
from torchlayout.compare.state import RunRecord, StudyState
from torchlayout.compare.study import Study
from torchlayout.errors import InputError

Behaviour = dict[str, dict[str, Any]]


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tells the fake training what each layout does."""

    def tell(**behaviour: Any) -> None:
        monkeypatch.setenv("FAKE_BEHAVIOUR", json.dumps(behaviour))

    return tell


def run(file: Path, **options: Any) -> dict[tuple[str, int], RunRecord]:
    return {(run.label, run.repeat): run for run in run_study(Study.load(file), **options).runs}


def test_out_of_memory_a_crash_a_hang_and_an_illegal_layout_end_neither_the_study_nor_each_other(
    tmp_path: Path, behave: Any
) -> None:
    behave(tp2={"do": "oom"}, pp2={"do": "crash"}, dp2={"do": "hang"})
    file = study_file(tmp_path, ["tp2", "pp2", "fsdp2", "dp2", "fsdp4", "fsdp2+ckpt"], timeout_seconds=6)
    runs = run(file)
    assert {label: record.status for (label, _), record in runs.items()} == {
        "tp2": "oom",
        "pp2": "failed",
        "fsdp2": "ok",
        "dp2": "timeout",
        "fsdp2+ckpt": "ok",
    }
    reasons = {label: record.reason for (label, _), record in runs.items()}
    assert reasons["tp2"] == "out of memory: 8 GiB more could not be allocated"
    assert reasons["pp2"] == "ValueError: planted (after 2 of 4 steps; see pp2/repeat_1/logs/torchrun.log)"
    assert reasons["dp2"] == "ended after compare.timeout_seconds = 6, with 2 of 4 steps done"
    content = table(tmp_path / "studies" / "study")
    by_label = {layout["label"]: layout for layout in content["layouts"]}
    assert by_label["fsdp4"]["status"] == "skipped"
    assert "is for 4 ranks, and the study has 2" in by_label["fsdp4"]["reason"]
    assert by_label["fsdp2+ckpt"]["step_seconds"]["median"] > 0
    assert (content["verdict"]["fair"], content["verdict"]["parity"]) == (True, True)
    assert processes_of(file) == []


@pytest.mark.parametrize(
    ("do", "status", "reason"),
    [
        ("oom in the log", "oom", "out of memory: [rank0]: torch.OutOfMemoryError: CUDA out of memory."),
        ("kill", "failed", "rank 1 was killed by signal 9 (SIGKILL) after "),
        ("short", "failed", "ended without an error after 3 of 4 steps"),
        ("refuse", "failed", "batch.global_size = 3 cannot be"),
    ],
)
def test_the_reason_of_a_bad_end_is_in_words(do: str, status: str, reason: str, tmp_path: Path, behave: Any) -> None:
    behave(fsdp2={"do": do})
    record = run(study_file(tmp_path, ["fsdp2"]))["fsdp2", 1]
    assert record.status == status
    assert record.reason is not None
    assert record.reason.startswith(reason)


def test_a_launcher_that_is_no_program_is_a_failed_run(tmp_path: Path) -> None:
    record = run(study_file(tmp_path, ["fsdp2"], launcher="no-such-program {command}"))["fsdp2", 1]
    assert (record.status, record.exit_code) == ("failed", 127)
    assert "no-such-program cannot be started: No such file or directory" in str(record.reason)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("interleaved", "A1 B1 C1 A2 B2 C2 A3 B3 C3"), ("sequential", "A1 A2 A3 B1 B2 B3 C1 C2 C3")],
)
def test_repeats_are_interleaved_unless_it_is_said_otherwise(
    order: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ORDER", str(tmp_path / "order"))
    names = {"fsdp2": "A", "tp2": "B", "pp2": "C"}
    run(study_file(tmp_path, list(names), repeats=3, order=order, steps=2))
    lines = [line.split() for line in (tmp_path / "order").read_text().splitlines()]
    assert " ".join(names[label] + name.removeprefix("repeat_") for label, name in lines) == expected


def test_what_runs_out_of_memory_once_is_not_tried_again_but_a_crash_is(tmp_path: Path, behave: Any) -> None:
    behave(fsdp2={"do": "oom"}, tp2={"do": "crash"})
    runs = run(study_file(tmp_path, ["fsdp2", "tp2"], repeats=2))
    assert [runs["fsdp2", repeat].status for repeat in (1, 2)] == ["oom", "skipped"]
    assert runs["fsdp2", 2].reason == "repeat 1 ran out of memory, and so would this one"
    assert [runs["tp2", repeat].status for repeat in (1, 2)] == ["failed", "failed"]


def test_a_rank_that_ignores_sigterm_is_ended_all_the_same(tmp_path: Path, behave: Any) -> None:
    behave(fsdp2={"do": "stubborn"})
    file = study_file(tmp_path, ["fsdp2"], timeout_seconds=1)
    assert run(file)["fsdp2", 1].status == "timeout"
    assert processes_of(file) == []


class TestResume:
    """A study that was stopped goes on where it was."""

    def test_done_runs_are_not_done_again_and_failed_ones_are(
        self, tmp_path: Path, behave: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = study_file(tmp_path, ["fsdp2", "tp2", "pp2"])
        behave(tp2={"do": "crash"}, pp2={"do": "oom"})
        run(file)
        behave()
        monkeypatch.setenv("FAKE_ORDER", str(tmp_path / "order"))
        runs = run(file, resume=True)
        assert (tmp_path / "order").read_text() == "tp2 repeat_1\n"
        assert [record.status for record in runs.values()] == ["ok", "ok", "oom"]

    def test_only_runs_what_it_names_and_leaves_the_rest_as_it_was(self, tmp_path: Path, behave: Any) -> None:
        file = study_file(tmp_path, ["fsdp2", "tp2", "pp2"])
        behave(tp2={"do": "crash"})
        assert [record.status for record in run(file, only=["tp2"]).values()] == ["pending", "failed", "pending"]
        assert [record.status for record in run(file, resume=True, only=["fsdp2+sdpa"]).values()] == [
            "ok",
            "failed",
            "pending",
        ]
        with pytest.raises(InputError, match="--only tp4 is no layout that this study runs; did you mean tp2"):
            run(file, resume=True, only=["tp4"])

    def test_repeats_and_layouts_may_be_added_but_the_training_may_not_change(self, tmp_path: Path) -> None:
        run(study_file(tmp_path, ["fsdp2"]))
        runs = run(study_file(tmp_path, ["fsdp2", "tp2"], repeats=2), resume=True)
        assert [record.status for record in runs.values()] == ["ok"] * 4
        with pytest.raises(InputError, match=r"compare\.steps is 5 and was 4"):
            run(study_file(tmp_path, ["fsdp2"], steps=5), resume=True)

    def test_what_took_too_long_is_tried_again_once_it_may_take_longer(self, tmp_path: Path, behave: Any) -> None:
        behave(fsdp2={"do": "hang"})
        runs = run(study_file(tmp_path, ["fsdp2"], repeats=2, timeout_seconds=0.5))
        assert [record.status for record in runs.values()] == ["timeout", "skipped"]
        behave()
        runs = run(study_file(tmp_path, ["fsdp2"], repeats=2, timeout_seconds=0.5), resume=True)
        assert [record.status for record in runs.values()] == ["timeout", "skipped"]
        runs = run(study_file(tmp_path, ["fsdp2"], repeats=2, timeout_seconds=60), resume=True)
        assert [(record.status, record.reason) for record in runs.values()] == [("ok", None), ("ok", None)]

    def test_a_study_is_not_overwritten_by_accident(self, tmp_path: Path) -> None:
        file = study_file(tmp_path, ["fsdp2"])
        run(file)
        with pytest.raises(InputError, match="already holds a study; go on with it by --resume, replace it by"):
            run(file)
        keep = tmp_path / "studies" / "study" / "fsdp2" / "repeat_1" / "mine"
        keep.touch()
        run(file, overwrite=True)
        assert not keep.exists()

    def test_two_drivers_do_not_run_one_study(self, tmp_path: Path) -> None:
        file = study_file(tmp_path, ["fsdp2"])
        first = driver(file, behaviour={"fsdp2": {"do": "hang"}})
        wait_until(lambda: processes_of(file))
        with pytest.raises(InputError, match="is being run by another process"):
            run(file, resume=True)
        first.terminate()
        assert first.wait(30) == 128 + signal.SIGTERM
        assert processes_of(file) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_stopped_driver_leaves_no_process_and_a_run_that_is_pending_again(number: int, tmp_path: Path) -> None:
    file = study_file(tmp_path, ["fsdp2", "tp2"])
    running = driver(file, behaviour={"tp2": {"do": "hang"}})
    state = tmp_path / "studies" / "study" / "study.json"
    wait_until(lambda: state.exists() and [run.status for run in StudyState.read(state).runs] == ["ok", "running"])
    wait_until(lambda: len(processes_of(file)) == 3)
    running.send_signal(number)
    assert running.wait(30) != 0
    assert processes_of(file) == []
    assert [run.status for run in StudyState.read(state).runs] == ["ok", "pending"]
    assert driver(file, "--resume").wait(60) == 0
    assert [run.status for run in StudyState.read(state).runs] == ["ok", "ok"]


LAYOUTS = ("fsdp2", "tp2", "pp2")
SLOW: Behaviour = {label: {"step_seconds": 0.05, "speed": 1.0 + number} for number, label in enumerate(LAYOUTS)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The table of the study that nobody kills."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert driver(study_file(folder, LAYOUTS), behaviour=SLOW).wait(60) == 0
    return table(folder / "studies" / "study")


@pytest.mark.parametrize("victim", ["driver", "driver, again", "guard", "rank"])
def test_after_a_kill_at_any_moment_resume_ends_with_the_same_table_and_no_orphan(
    victim: str, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    file = study_file(tmp_path, LAYOUTS)
    running = driver(file, behaviour=SLOW)
    wait_until(lambda: len(processes_of(file)) == 3)
    time.sleep(random.Random(victim).uniform(0.0, 0.5))
    if victim.startswith("driver"):
        running.kill()
        running.wait(30)
    else:
        wait_until(lambda: len(processes_of(file)) == 3)
        os.kill(guard_of(running.pid) if victim == "guard" else max(processes_of(file)), signal.SIGKILL)
        assert running.wait(60) == 0
    wait_until(lambda: processes_of(file) == [])
    assert driver(file, "--resume", behaviour=SLOW).wait(60) == 0
    assert processes_of(file) == []
    assert table(tmp_path / "studies" / "study") == undisturbed


def guard_of(driver_pid: int) -> int:
    """The only child of a driver."""
    (child,) = Path(f"/proc/{driver_pid}/task/{driver_pid}/children").read_text().split()
    return int(child)
