"""What a run continues: its own newest sound checkpoint, another one that is named, or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from rich.console import Console

from torchlayout.checkpoint import Checkpoint, Checkpoints
from torchlayout.config import Config
from torchlayout.errors import InputError
from torchlayout.records import RunDirectory

Value = TypeVar("Value")


def checkpoint_to_continue(config: Config, directory: RunDirectory, console: Console) -> Checkpoint | None:
    """The checkpoint that this run continues, verified, the same on every rank; None: it starts. A collective call.

    Raises InputError rather than start over where something is there already that cannot be continued.
    """
    own = [] if config.checkpoint.resume == "never" else _shared(Checkpoints(directory.checkpoints_path).committed())
    skipped: list[str] = []
    for checkpoint in reversed(own):
        faults = _faults(checkpoint)
        if not faults:
            return checkpoint
        skipped += faults
        console.print(f"skipped {checkpoint.path}: {'; '.join(faults)}")
    if skipped:
        raise InputError(
            f"no checkpoint in {directory.checkpoints_path} is sound ({'; '.join(skipped)}); "
            "put a good copy back, or start anew under another run.name"
        )
    if _shared(directory.metrics_path.exists()):
        _may_start_over(directory, console)
    if config.checkpoint.resume in ("auto", "never"):
        return None
    return _named(config.checkpoint.resume)


def _may_start_over(directory: RunDirectory, console: Console) -> None:
    """A restart by torchrun before the first checkpoint has nothing else to do; any other start is refused."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if restarts == 0:
        raise InputError(
            f"run.name = {directory.path.name!r}: {directory.path} already holds a run, and no checkpoint to continue; "
            "choose another run.name or run.directory, or move that folder away"
        )
    console.print(f"restart {restarts} by torchrun before the first checkpoint: starting from step 1 again")


def _named(path: str) -> Checkpoint:
    checkpoint = Checkpoint(Path(path))
    newest = _shared(Checkpoints(Path(path)).committed() or Checkpoints(Path(path) / "checkpoints").committed())
    if newest:
        checkpoint = newest[-1]
    faults = _faults(checkpoint)
    if faults:
        raise InputError(f"checkpoint.resume = {path!r} cannot be continued: {'; '.join(faults)}")
    return checkpoint


def _faults(checkpoint: Checkpoint) -> list[str]:
    """What is wrong with a checkpoint; each rank reads its share of the files."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    by_rank: list[list[str]] = [[] for _ in range(ranks)]
    dist.all_gather_object(by_rank, list(checkpoint.faults(rank, ranks)))
    return list(dict.fromkeys(fault for faults in by_rank for fault in faults))


def _shared(value: Value) -> Value:
    """Rank 0's value, on every rank: folders may change while ranks look."""
    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]
