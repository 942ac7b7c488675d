"""A run that is told to stop saves at the end of its step, and goes on from there."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from harness.command import SmallRun
from torchlayout.train.stop import TIME_LIMIT, StopRequest, stop_reason

MANY_STEPS = 100_000


@pytest.fixture
def small(tmp_path: Path, small_corpus: Path) -> SmallRun:
    return SmallRun(tmp_path, small_corpus)


def test_a_signal_is_remembered_however_often_it_comes_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    request = StopRequest(None)
    with request.on_signals():
        assert request.code() == 0
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert request.code() == signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) == before
    assert stop_reason(request.code()) == "SIGUSR1"


def test_a_second_interrupt_ends_a_process_that_is_alone_at_once() -> None:
    request = StopRequest(None)
    with request.on_signals():
        os.kill(os.getpid(), signal.SIGINT)
        assert request.code() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_time_limit_counts_from_the_start() -> None:
    assert StopRequest(60).code() == 0
    request = StopRequest(1e-9)
    time.sleep(0.001)
    assert stop_reason(request.code()) == "the wall-time limit"
    assert TIME_LIMIT not in (signal.SIGTERM, signal.SIGUSR1)
    assert stop_reason(0) is None


def test_at_its_time_limit_a_run_saves_ends_well_and_later_goes_on(small: SmallRun) -> None:
    line = small.line(train__wall_time_limit_minutes=1e-6, checkpoint__every=50)
    done = small.run(line)
    assert (done.returncode, small.steps_on_disk()) == (0, ["step_1"]), done.stderr
    assert small.directory.read_run()["exit_reason"] == "stopped by the wall-time limit after step 1"
    assert small.run(small.line()).returncode == 0
    facts = small.directory.read_run()
    assert (facts["exit_reason"], facts["steps"]) == ("done", 4)
    assert facts["resumed_from"].endswith("step_1")
    assert [record["step"] for record in small.directory.metrics()] == [1, 2, 3, 4]


def test_without_checkpoints_a_run_ends_well_too(small: SmallRun) -> None:
    done = small.run(small.line(train__wall_time_limit_minutes=1e-6, checkpoint__every=0))
    assert done.returncode == 0
    assert "will end this run without saving it" in done.stdout
    assert not small.directory.checkpoints_path.exists()
    assert "nothing was saved" in done.stdout


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_to_the_whole_process_group_leaves_the_loader_its_workers(
    number: signal.Signals, status: int, small: SmallRun
) -> None:
    line = small.line(train__steps=MANY_STEPS, checkpoint__every=MANY_STEPS, data__workers=2)
    with (small.folder / "log").open("w") as log:
        process = small.start(line, stdout=log, stderr=log, start_new_session=True)
        _wait_for_steps(small)
        os.killpg(process.pid, number)
        assert process.wait(timeout=60) == status, (small.folder / "log").read_text()
    steps = len(small.directory.metrics())
    assert small.steps_on_disk() == [f"step_{steps}"]
    assert small.directory.read_run()["exit_reason"] == f"stopped by {number.name} after step {steps}"
    assert "Traceback" not in (small.folder / "log").read_text()


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 1), (signal.SIGUSR1, 1), (signal.SIGKILL, -9)], ids=lambda value: str(value)
)
def test_what_ends_torchrun_has_the_ranks_save_and_leaves_none(
    number: signal.Signals, status: int, small: SmallRun
) -> None:
    forwarded = ("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "--shutdown-timeout", "100")
    line = small.line(2, forwarded, train__steps=MANY_STEPS, checkpoint__every=MANY_STEPS, data__workers=1)
    with (small.folder / "log").open("w") as log:
        agent = small.start(line, stdout=log, stderr=log)
        ranks = _ranks_that_step(small, agent.pid)
        agent.send_signal(number)
        assert agent.wait(timeout=100) == status
    _wait_until_gone(ranks)
    # torchrun itself ends by SIGTERM where the kernel tells of its death.
    name = "SIGTERM" if number == signal.SIGKILL else number.name
    reason = small.directory.read_run()["exit_reason"]
    match = re.fullmatch(rf"stopped by {name} after step (\d+)", reason)
    assert match, reason + (small.folder / "log").read_text()[-3000:]
    assert small.steps_on_disk() == [f"step_{match[1]}"]
    assert len(small.directory.metrics()) == int(match[1])


def _ranks_that_step(small: SmallRun, agent: int) -> list[int]:
    _wait_for_steps(small)
    return [int(child) for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


def _wait_for_steps(small: SmallRun) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        if len(small.directory.metrics()) >= 2:
            return
        time.sleep(0.1)
    raise AssertionError((small.folder / "log").read_text()[-3000:])


def _wait_until_gone(processes: list[int]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not any(Path(f"/proc/{process}").exists() for process in processes):
            return
        time.sleep(0.1)
    raise AssertionError(f"still there: {processes}")
