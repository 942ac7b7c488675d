"""Tensors on their way from one file to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from torchlayout.checkpoint.find import Report
from torchlayout.checkpoint.tensors import Entry


def reported(entries: Sequence[Entry], report: Report) -> list[Entry]:
    """The same entries, which report the bytes that were read so far."""
    total, done = sum(entry.bytes for entry in entries), 0

    def read(entry: Entry) -> Tensor:
        nonlocal done
        tensor = entry.read()
        done += entry.bytes
        report(done, total)
        return tensor

    report(0, total)
    return [replace(entry, read=partial(read, entry)) for entry in entries]


def in_groups(entries: Sequence[Entry], most_bytes: int) -> list[list[Entry]]:
    """Entries for one file after the other, none larger than `most_bytes` unless one tensor is."""
    groups: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if groups[-1] and size + entry.bytes > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.bytes
    return groups
