"""Traces of chosen steps: torch's profiler around them, and a range around each phase inside.

Outside of the window no profiler runs and no range is opened.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rich.console import Console
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from torchlayout.config.sections import ProfileSection
from torchlayout.parallel.mark import unmarked
from torchlayout.records import RunDirectory
from torchlayout.trace.ranges import Phase, Range
from torchlayout.train.breakdown import break_down
from torchlayout.train.exchange import sum_over_ranks
from torchlayout.train.loss_range import loss_marked
from torchlayout.train.phases import PhaseMemory
from torchlayout.train.tracefile import write_trace
from torchlayout.train.trainer import Trainer


class Profiler:
    """Profiles the steps of a window on the chosen ranks. Every rank has one, as all meet at both ends of the window.

    A run that continues inside the window profiles what is left of it. Constructing it on rank 0 sets traces of the
    same window aside that an earlier start of this run has left.
    """

    def __init__(self, trainer: Trainer, directory: RunDirectory, console: Console) -> None:
        settings = trainer.config.profile
        self.settings, self.directory, self.console, self.rank = settings, directory, console, dist.get_rank()
        self.window = window(settings, trainer.steps_done)
        self.chosen = settings.ranks == "all" or self.rank in settings.ranks
        self.profile: profile | None = None
        self.memory: PhaseMemory | None = None
        self.open = False
        if self.window and self.rank == 0:
            set_aside(self.folder, console)
        if settings.steps and not self.window:
            console.print(
                f"nothing is profiled: step {trainer.steps_done + 1} is next, after those of profile.start_step = "
                f"{settings.start_step}; set it to {trainer.steps_done + 1} or more"
            )

    @property
    def folder(self) -> Path:
        """Where the traces of the window are."""
        return self.directory.traces_path / f"step_{self.window.start}"

    @contextmanager
    def step(self, trainer: Trainer) -> Iterator[None]:
        """Around a step and what observers do after it; profiled where it is in the window."""
        number = trainer.steps_done + 1
        if number not in self.window:
            yield
            return
        if not self.open:
            self._start(trainer)
        if self.profile is None:
            yield
        else:
            trainer.mark = self.mark
            try:
                with ExitStack() as ranges:
                    if self.memory is not None:
                        ranges.enter_context(self.memory.step(number))
                    ranges.enter_context(record_function(str(Range("step", step=number))))
                    ranges.enter_context(loss_marked(trainer.model.parts))
                    yield
            finally:
                trainer.mark = unmarked
        if number == self.window[-1]:
            self.finish()

    def mark(
        self, phase: Phase, *, step: int | None = None, stage: int | None = None, micro_batch: int | None = None
    ) -> AbstractContextManager[object]:
        """The range of a phase in the trace, its memory measured outside of it."""
        in_trace = record_function(str(Range(phase, step, stage, micro_batch)))
        return in_trace if self.memory is None else self._measured(self.memory, phase, in_trace)

    def finish(self) -> None:
        """Write what was profiled, where something was; a collective call."""
        if not self.open:
            return
        self.open = False
        failure = self._written()
        failures: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(failures, failure)
        met: dict[str, int] = {}
        for rank, words in enumerate(failures):
            if words is not None:
                met.setdefault(words, rank)
        if met:
            causes = "; ".join(f"rank {rank}: {words}" for words, rank in met.items())
            self.console.print(f"traces are missing in {self.folder}: {causes}")

    def report(self) -> None:
        """Say on rank 0 where the traces are and the time went; after `finish`, as all ranks have written then."""
        if self.rank == 0 and self.window and any(self.folder.glob("rank*")):
            self.console.print(f"traces in {self.folder}; {break_down(self.folder, self.directory.path)}")

    def close(self) -> None:
        """Stop what still runs after training broke, and write nothing of it."""
        running, memory = self.profile, self.memory
        self.profile = self.memory = None
        self.open = False
        if running is not None:
            running.stop()
        if memory is not None:
            memory.close()

    def _start(self, trainer: Trainer) -> None:
        self.open = True
        if self.chosen:
            # Kineto reports each start and stop on standard error, at its highest level.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            activities = {kind for kind in supported_activities() if kind.name in ("CPU", trainer.device.type.upper())}
            # Shapes, as the bytes of a collective on a CPU are known from them alone.
            self.profile = profile(activities=activities | {ProfilerActivity.CPU}, record_shapes=True)
            if self.settings.memory:
                self.memory = PhaseMemory(trainer.memory, self.rank)
            self.profile.start()
            self.profile.add_metadata_json("torchlayout", json.dumps(facts_of(trainer, self.rank)))
        # Starting takes up to seconds, in which the other ranks would seem to wait for this one.
        sum_over_ranks(0, trainer.device)

    def _written(self) -> str | None:
        """Stop, and write this rank's files: a full disk must not end training. What went wrong, or None."""
        profiled, memory = self.profile, self.memory
        self.close()
        if profiled is None:
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_trace(profiled, self.folder / trace_name(self.rank))
            if memory is not None:
                memory.write(self.folder)
        except OSError as error:
            return error.strerror or str(error)
        return None

    @contextmanager
    def _measured(self, memory: PhaseMemory, phase: Phase, in_trace: AbstractContextManager[object]) -> Iterator[None]:
        with memory.phase(phase), in_trace:
            yield


def facts_of(trainer: Trainer, rank: int) -> dict[str, Any]:
    """What a trace says of its run, under `torchlayout`."""
    layout = trainer.layout
    micro_batches = layout.micro_batches(trainer.config.batch.global_size)
    return {"rank": rank, "world": layout.world, "layout": str(layout), "micro_batches": micro_batches}


def window(settings: ProfileSection, steps_done: int) -> range:
    """The steps that are still to be profiled."""
    return range(max(settings.start_step, steps_done + 1), settings.start_step + settings.steps)


def trace_name(rank: int) -> str:
    """The name of a rank's trace; TensorBoard's profiler plugins look for its ending."""
    return f"rank{rank}.{re.sub(r'[^A-Za-z0-9-]+', '-', socket.gethostname())}.pt.trace.json.gz"


def set_aside(folder: Path, console: Console) -> None:
    """Give way to a new window of the same name: traces of two starts of a run, on other ranks maybe, must not mix."""
    try:
        if not any(folder.glob("rank*")):
            shutil.rmtree(folder, ignore_errors=True)  # halves of a start that was killed
            return
        names = (folder.with_name(f"{folder.name}.earlier{count}") for count in range(1, 10_000))
        free = next(name for name in names if not name.exists())
        folder.replace(free)
        console.print(f"traces of an earlier start are now in {free}")
    except OSError as error:
        console.print(f"{folder} could not be set aside: {error.strerror or error}; it will hold traces of two starts")
