"""Safetensors files, streamed: one tensor in memory at a time, the checksum taken on the way.

The format is the one of the safetensors library, whose own writer wants all tensors, and a copy of each, at once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path

import torch
from torch import Tensor

from torchlayout.checkpoint.index import Chunk

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "U8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its key there, what it looks like, and a function that gives it when it is its turn."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Written:
    """A file on disk, and where in it the bytes of each key are."""

    name: str
    bytes: int
    sha256: str
    spans: dict[str, tuple[int, int]]


def write_file(path: Path, entries: Iterable[Entry], metadata: Mapping[str, str] | None = None) -> Written:
    """Write a safetensors file and flush it to disk; raises OSError where it cannot be written."""
    entries = sorted(entries, key=lambda entry: -entry.dtype.itemsize)  # so that every tensor is aligned
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    spans, end = {}, 0
    for entry in entries:
        start, end = end, end + entry.bytes
        spans[entry.key] = (start, end)
        header[entry.key] = {"dtype": NAMES[entry.dtype], "shape": entry.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)

    head = memoryview(len(text).to_bytes(8, "little") + text)
    sha256 = _write_and_digest(path, itertools.chain([head], map(_bytes_of, entries)))
    placed = {key: (begin + start, begin + stop) for key, (start, stop) in spans.items()}
    return Written(path.name, begin + end, sha256, placed)


class MappedFiles:
    """Chunks of the files in a folder, mapped into memory and so read only as far as they are used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps: dict[str, mmap.mmap] = {}

    def read(self, chunk: Chunk, dtype: str) -> Tensor:
        """The chunk, [*chunk.shape]; it must not be written to."""
        kind = DTYPES[dtype]
        if math.prod(chunk.shape) == 0:
            return torch.empty(chunk.shape, dtype=kind)
        if chunk.file not in self._maps:
            with (self.folder / chunk.file).open("rb") as file:
                # A private map is writable, which torch wants, and never reaches the file.
                self._maps[chunk.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        count = math.prod(chunk.shape)
        flat = torch.frombuffer(self._maps[chunk.file], dtype=kind, count=count, offset=chunk.start)
        return flat.view(chunk.shape)


def _write_and_digest(path: Path, parts: Iterable[memoryview]) -> str:
    """Write the parts and flush them to disk; their SHA-256, taken by another core while this one writes."""
    digest = hashlib.sha256()
    hashed: Future[None] | None = None
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1) as other:
        for part in parts:
            if hashed is not None:
                hashed.result()  # so that no more than two parts are held
            hashed = other.submit(digest.update, part)
            _write_whole(file, part)
            if hasattr(os, "posix_fadvise"):  # have the disk begin now, rather than at the end
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.fsync(file.fileno())
    return digest.hexdigest()


def _write_whole(file: RawIOBase, part: memoryview) -> None:
    """One write takes 2 GiB at most, and stops short where the disk is full."""
    written = 0
    while written < len(part):
        written += file.write(part[written:]) or 0


def _bytes_of(entry: Entry) -> memoryview:
    tensor = entry.read().detach().contiguous().cpu()
    assert tensor.dtype == entry.dtype
    assert tuple(tensor.shape) == entry.shape
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
