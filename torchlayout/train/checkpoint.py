"""When a run is saved: every so many steps, at the end, and when it is told to stop."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from torchlayout.checkpoint import Checkpoints
from torchlayout.checkpoint.storage import FolderWriter
from torchlayout.train.state import facts, save_planner, tensors
from torchlayout.train.trainer import StepResult, Trainer

SAVE_TIMEOUT_SECONDS = 3600.0


class Saver:
    """Saves checkpoints, one at a time. A save that fails is reported, and the run goes on to the next.

    failure: what went wrong with the last save, None where it stands. Constructing it is a collective call.
    """

    def __init__(self, trainer: Trainer, checkpoints: Checkpoints, console: Console) -> None:
        self.settings = trainer.config.checkpoint
        self.checkpoints, self.console = checkpoints, console
        self.failure: str | None = None
        self.asynchronous = self.settings.asynchronous and self.settings.every > 0
        # Threads must not share a group with the step: gloo (and NCCL) match collectives by their order.
        self.group = dist.new_group(backend="gloo") if self.asynchronous else None
        self.stager = _stager(trainer.device) if self.asynchronous else None
        self.pending: tuple[FolderWriter, Future[Any]] | None = None

    def after_step(self, trainer: Trainer, result: StepResult) -> StepResult:
        """Save where it is time to."""
        if self.settings.every == 0:
            return result
        ends = result.stop is not None or result.step == trainer.config.train.steps
        if ends or result.step % self.settings.every == 0:
            with trainer.mark("checkpoint"):
                self.save(trainer, wait=ends)
        return result

    def save(self, trainer: Trainer, *, wait: bool) -> None:
        """Save the state after the last step; a collective call. An asynchronous one returns once it is copied."""
        self.finish()
        # A damaged checkpoint of this step gives its name to the new one.
        self.checkpoints = self.checkpoints.without_passed_over(trainer.steps_done)
        writer = FolderWriter(self.checkpoints, facts(trainer), self.settings.keep)
        try:
            if self.stager is None:
                save(tensors(trainer), storage_writer=writer, planner=save_planner())
                self._report(writer, None)
                return
            pending = async_save(
                tensors(trainer),
                storage_writer=writer,
                planner=save_planner(),
                process_group=self.group,
                async_stager=self.stager,
            )
            assert isinstance(pending, Future)
            self.pending = writer, pending
        except CheckpointException as error:
            self._report(writer, error)
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait for the save that is under way."""
        if self.pending is None:
            return
        (writer, pending), self.pending = self.pending, None
        try:
            pending.result(timeout=SAVE_TIMEOUT_SECONDS)
            self._report(writer, None)
        except (CheckpointException, TimeoutError) as error:
            self._report(writer, error)

    def close(self) -> None:
        """Wait for the save that is under way, and give the memory of its copy back."""
        self.finish()
        if self.stager is not None:
            self.stager.close()

    def _report(self, writer: FolderWriter, error: BaseException | None) -> None:
        step = writer.step
        self.failure = None if error is None else f"the checkpoint of step {step} was not saved: {_cause(error)}"
        if self.failure is None:
            note = "" if writer.note is None else f"; {writer.note}"
            self.console.print(f"saved {self.checkpoints.path / f'step_{step}'}{note}")
            return
        self.console.print(f"{self.failure}; older ones stand")
        if dist.get_rank() == 0:
            with suppress(OSError):
                self.checkpoints.discard_unfinished()


def _stager(device: torch.device) -> DefaultStager:
    on_accelerator = device.type != "cpu"
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=on_accelerator,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=on_accelerator,
        )
    )


def _cause(error: BaseException) -> str:
    """What the ranks met, each different thing once."""
    if not isinstance(error, CheckpointException):
        return f"it took longer than {SAVE_TIMEOUT_SECONDS:g} seconds"
    met: dict[str, int] = {}
    for rank, (raised, _) in sorted(error.failures.items()):
        words = raised.strerror if isinstance(raised, OSError) else None
        met.setdefault(words or str(raised), rank)
    return "; ".join(f"rank {rank}: {words}" for words, rank in met.items())
