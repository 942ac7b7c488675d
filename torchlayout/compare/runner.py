"""Runs a study: each layout and repeat as a job of its own, one after the other, until all have a result."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from torchlayout.compare import guard, launcher, outcome
from torchlayout.compare.job import Job
from torchlayout.compare.state import RESULTS, RunRecord, StudyState, only_driver
from torchlayout.compare.study import Study
from torchlayout.errors import InputError
from torchlayout.files import write_atomically
from torchlayout.layout.words import nearest
from torchlayout.records import RunDirectory

POLL_SECONDS = 0.5


class View(Protocol):
    """Sees every change of a study's runs."""

    def show(self, state: StudyState, running: RunRecord | None, started: float | None) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, state: StudyState, running: RunRecord | None, started: float | None) -> None:
        """Nothing."""


def run_study(
    study: Study,
    *,
    resume: bool = False,
    overwrite: bool = False,
    only: Collection[str] = (),
    view: View | None = None,
) -> StudyState:
    """Runs what has no result yet, and returns the state.

    Raises InputError where the directory holds a study already (neither resume nor overwrite), or one of another
    training, or where `only` names no layout of it. Ctrl-C and SIGTERM end the run, which is pending again.
    """
    chosen = _chosen(study, only)
    with only_driver(study.directory), _ended_by_signals():
        state = _prepare(study, resume, overwrite)
        for run in state.runs:
            if run.label in chosen:
                _run_one(study, state, run, view or Silent())
    return state


def _chosen(study: Study, only: Collection[str]) -> set[str]:
    labels = [planned.label for planned in study.layouts if planned.skipped_reason is None]
    wanted = {label: study.canonical(label) for label in only}
    unknown = [label for label, canonical in wanted.items() if canonical not in labels]
    if unknown:
        raise InputError(
            *(f"--only {label} is no layout that this study runs; {nearest(label, labels)}" for label in unknown)
        )
    return set(wanted.values()) if only else set(labels)


def _prepare(study: Study, resume: bool, overwrite: bool) -> StudyState:
    path, directory = study.directory / "study.json", study.directory
    known: dict[tuple[str, int], RunRecord] = {}
    created = None
    if path.exists() and overwrite:
        for old in StudyState.read(path).runs:
            if old.status == "running" and old.mark is not None:
                guard.end(old.mark)
        _clear(directory)
    elif path.exists():
        if not resume:
            raise InputError(
                f"{directory} already holds a study; go on with it by --resume, replace it by --overwrite, "
                "or give another name"
            )
        earlier = Study.load(directory / "study.toml")
        if different := study.differences(earlier):
            raise InputError(
                *(f"--resume: {phrase} in {directory}; its results could not be compared" for phrase in different)
            )
        before = StudyState.read(path)
        longer = study.compare.timeout_seconds > earlier.compare.timeout_seconds
        known = {(run.label, run.repeat): run for run in before.runs if not (longer and run.status == "timeout")}
        created = before.created
        for half in directory.glob(".*.half"):
            half.unlink()
    study.write(directory / "study.toml")
    state = StudyState.new(path, [_taken_over(run, known) for run in _order(study)])
    state.created = created or state.created
    state.write()
    return state


def _clear(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != ".lock":
            entry.unlink()


def _order(study: Study) -> Iterator[RunRecord]:
    labels = [planned.label for planned in study.layouts if planned.skipped_reason is None]
    repeats = range(1, study.compare.repeats + 1)
    if study.compare.order == "interleaved":
        yield from (RunRecord(label, repeat) for repeat in repeats for label in labels)
    else:
        yield from (RunRecord(label, repeat) for label in labels for repeat in repeats)


def _taken_over(run: RunRecord, known: Mapping[tuple[str, int], RunRecord]) -> RunRecord:
    old = known.get((run.label, run.repeat), run)
    if old.mark is None:
        return old
    guard.end(old.mark)  # the driver was killed, and perhaps the guard with it
    return run


def _run_one(study: Study, state: StudyState, run: RunRecord, view: View) -> None:
    if run.status in RESULTS:
        return
    # Memory and time run out the same way again.
    lost = next((other for other in state.of(run.label) if other.status in ("oom", "timeout")), None)
    if lost is not None:
        said = "ran out of memory" if lost.status == "oom" else "did not end in time"
        state.update(run, status="skipped", reason=f"repeat {lost.repeat} {said}, and so would this one")
        return
    files = RunDirectory(study.directory / run.directory)
    if files.path.exists():
        shutil.rmtree(files.path)
    log = study.directory / run.log
    mark = f"{study.name}-{secrets.token_hex(8)}"
    command = _command(study, run, mark)
    run = state.update(run, status="running", mark=mark, reason=None, exit_code=None, seconds=None)
    kills, started = outcome.kernel_kills(), time.monotonic()
    view.show(state, run, started)
    job = Job(command, mark, log, os.environ)
    try:
        code = _wait(job, study.compare.timeout_seconds, lambda: view.show(state, run, started))
    except BaseException:
        job.stop()
        view.show(state, state.update(run, status="pending", mark=None), None)
        raise
    if code is None:
        job.stop()
        status: str = "timeout"
        reason: str | None = outcome.timed_out(files, study.compare.timeout_seconds, study.compare.steps)
    else:
        status, reason = outcome.judge(files, log, code, study.compare.steps, outcome.kernel_kills() > kills)
    seconds = time.monotonic() - started
    run = state.update(run, status=status, reason=reason, exit_code=code, seconds=seconds, mark=None)
    view.show(state, run, None)


def _wait(job: Job, seconds: float, tick: Callable[[], None]) -> int | None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        code = job.wait(min(POLL_SECONDS, left))
        if code is not None:
            return code
        tick()
    return None


def _command(study: Study, run: RunRecord, mark: str) -> list[str]:
    layout = next(planned.layout for planned in study.layouts if planned.label == run.label)
    assert layout is not None, "a layout without a value is never run"
    config = study.directory / run.label / "config.toml"
    write_atomically(config, study.toml_of(layout))
    settings = study.run_settings() | {
        "run.directory": str(study.directory / run.label),
        "run.name": f"repeat_{run.repeat}",
    }
    # A JSON value of these kinds is a TOML value as well.
    words = [
        word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value, ensure_ascii=False)}")
    ]
    return launcher.command(
        study.compare.launcher,
        ["-m", "torchlayout.train", str(config), *words],
        nproc=study.compare.nproc,
        nnodes=study.compare.nnodes,
        label=run.label,
        directory=str(study.directory / run.directory),
        job=mark,
    )


@contextmanager
def _ended_by_signals(numbers: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP)) -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into an exit that cleans up, as Ctrl-C does."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # What nohup has made ignored stays ignored.
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
