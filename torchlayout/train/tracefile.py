"""A trace on disk: packed, and whole or not there."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.profiler import profile

PACKING = 3
"""Of gzip's levels 1 to 9; every rank waits meanwhile."""


def write_trace(profiled: profile, path: Path) -> None:
    """Write a trace as gzip'd JSON; raises OSError, and leaves nothing, where it cannot be written."""
    # The exporter has a temporary file of its own beside the one it is given, and leaves it on a full disk.
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        plain, half = Path(folder) / "trace.json", Path(folder) / "trace.json.gz"
        profiled.export_chrome_trace(str(plain))
        if not is_whole(plain):
            raise OSError("the trace could not be written whole (is the disk full?)")
        with half.open("wb") as file:
            with plain.open("rb") as source, gzip.open(file, "wb", compresslevel=PACKING) as packed:
                shutil.copyfileobj(source, packed, 2**20)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)


def is_whole(path: Path) -> bool:
    """Whether a file ends as a JSON object does: the exporter does not say that it failed."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        return file.read().rstrip().endswith(b"}")
