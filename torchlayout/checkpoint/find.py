"""Which checkpoint a person means by a path, and whether it is as it was written. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchlayout.checkpoint.folder import COMMITTED, INDEX, NAME, Checkpoint, Checkpoints
from torchlayout.errors import InputError

if TYPE_CHECKING:
    from torchlayout.config import Config

Report = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""


def quiet(done: int, total: int) -> None:
    """Report to nobody."""


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is one checkpoint (damaged or not) rather than a run with several."""
    return bool(NAME.fullmatch(path.name)) or (path / COMMITTED).exists() or (path / INDEX).exists()


def checkpoints_at(path: Path) -> list[Checkpoint]:
    """The checkpoint that is at a path, or those of the run there, oldest first; raises InputError where none is."""
    if not path.is_dir():
        raise InputError(f"{path} is no folder; give a run, such as runs/mine, or one of its checkpoints")
    if is_checkpoint(path):
        return [Checkpoint(path)]
    found = Checkpoints(path / "checkpoints").committed() or Checkpoints(path).committed()
    if not found:
        raise InputError(f"{path} holds no checkpoint; a run saves some where checkpoint.every is above 0")
    return found


def checked(checkpoints: Sequence[Checkpoint], report: Report = quiet) -> Iterator[tuple[Checkpoint, list[str]]]:
    """Read checkpoints whole, one after the other: each with what is wrong with it."""
    total, done = sum(map(_size, checkpoints)), 0
    for checkpoint in checkpoints:
        faults: list[str] = []
        try:
            for name, facts in sorted(checkpoint.files.items()):
                report(done, total)
                if fault := checkpoint.fault(name):
                    faults.append(fault)
                done += int(facts["bytes"])
            if checkpoint.fault(INDEX) is None and (fault := checkpoint.index_fault()):
                faults.append(fault)
        except InputError as error:
            faults.append(str(error))
        report(done, total)
        yield checkpoint, faults


def sound_checkpoint(path: Path, report: Report = quiet) -> tuple[Checkpoint, list[str]]:
    """The checkpoint at a path, or a run's newest sound one, after reading it whole; and why newer ones are not it.

    Raises InputError where none is sound.
    """
    skipped: list[str] = []
    for checkpoint in reversed(checkpoints_at(path)):
        [(_, faults)] = checked([checkpoint], report)
        if not faults:
            return checkpoint, skipped
        skipped += faults
    raise InputError(*skipped)


def resume_problems(config: Config) -> list[str]:
    """What keeps a run from beginning with the checkpoint that is named; one that has its own does not need it."""
    resume, path = config.checkpoint.resume, Path(config.checkpoint.resume)
    own = Checkpoints(Path(config.run.directory) / config.run.name / "checkpoints").committed()
    if resume in ("auto", "never") or own or path.is_dir():
        return []
    return [f"checkpoint.resume = {resume!r} is no folder; legal: auto, never, or the folder of a run or a checkpoint"]


def _size(checkpoint: Checkpoint) -> int:
    try:
        return checkpoint.bytes
    except InputError:
        return 0
