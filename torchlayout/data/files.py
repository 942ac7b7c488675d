"""What a full disk and killed writers leave, handled in one place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchlayout.errors import InputError


def half_name(path: Path) -> Path:
    """The name `path` has while it is written: hidden, and of this process alone, as `write_atomically` does it."""
    return path.with_name(f".{path.name}.{os.getpid()}.half")


def remove_halves(directory: Path) -> None:
    """Delete what killed processes left half-written in `directory`."""
    for left in directory.glob(".*.half"):
        left.unlink(missing_ok=True)


@contextmanager
def refusing_full_disk(directory: Path) -> Iterator[None]:
    """A full disk (or quota) while writing below `directory` becomes a sentence for a person; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(
            f"the disk that holds {directory} is full; free some space and run the same command again, "
            "finished token files are kept"
        ) from error
