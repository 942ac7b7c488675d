"""What each kind of collective moved, how long it took, how much of that was exposed, and at what bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchlayout.trace.activity import Activity
from torchlayout.trace.intervals import length
from torchlayout.trace.meet import Meetings
from torchlayout.trace.shares import Cut, Kind, exposed_by_kind, kind_of, spans_by_kind

SECOND = 1e9


def bus_factor(collective: str, ranks: int) -> float:
    """What a link carries of each byte of a collective, as in nccl-tests: 2 (n - 1) / n for an all-reduce, ..."""
    if ranks < 2:
        return 1.0
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


@dataclass
class _Row:
    count: int = 0
    bytes: int = 0
    nanoseconds: int = 0
    exposed: int = 0
    timed_bytes: int = 0
    timed: int = 0


class CollectiveTable:
    """Sums over ranks and steps, by kind."""

    def __init__(self) -> None:
        self.rows: defaultdict[Kind, _Row] = defaultdict(_Row)
        self.counted_to: dict[int, int] = {}
        self.rank_steps = 0

    def add(self, activity: Activity, cut: Cut, meetings: Meetings) -> None:
        """Count a rank's transfers of a step, the steps in their order."""
        self.rank_steps += 1
        for kind, exposed in exposed_by_kind(activity, cut).items():
            self.rows[kind].exposed += exposed
        for kind, spans in spans_by_kind(activity, cut).items():
            self.rows[kind].nanoseconds += length(spans)
        counted_to = self.counted_to.get(activity.rank)
        for transfer in activity.transferring(cut.step):
            # One that began in an earlier step was counted there.
            if counted_to is not None and transfer.start < counted_to:
                continue
            row = self.rows[kind_of(transfer)]
            row.count += 1
            row.bytes += transfer.bytes
            # Bandwidth only counts from when the last rank had come.
            begun = max(transfer.start, meetings.last_start(activity.rank, transfer) or transfer.start)
            if transfer.bytes and transfer.end > begun:
                row.timed_bytes += transfer.bytes
                row.timed += transfer.end - begun
        self.counted_to[activity.rank] = cut.step.end

    def document(self) -> list[dict[str, Any]]:
        """The rows as means of a rank and a step, those that take longest first."""
        share = max(1, self.rank_steps)
        found = [
            {
                "collective": collective,
                "axis": axis,
                "group_size": size,
                "count": row.count / share,
                "bytes": row.bytes / share,
                "seconds": row.nanoseconds / SECOND / share,
                "exposed_seconds": row.exposed / SECOND / share,
                "bus_bytes_per_second": bus_factor(collective, size) * row.timed_bytes / (row.timed / SECOND)
                if row.timed
                else None,
            }
            for (axis, collective, size), row in self.rows.items()
        ]
        return sorted(found, key=lambda row: (-row["seconds"], row["collective"], row["axis"]))


def kernel_table(activities: Iterable[Activity]) -> list[dict[str, Any]]:
    """Every kernel (or operator of a host) by name, over all ranks, longest first."""
    sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for activity in activities:
        for kernel in activity.kernels:
            row = sums[kernel.name, kernel.kind]
            row[0] += kernel.runs
            row[1] += kernel.nanoseconds
    rows: list[dict[str, Any]] = [
        {"name": name, "class": kind, "count": count, "seconds": spent / SECOND}
        for (name, kind), (count, spent) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row["seconds"], row["name"]))


def seconds(nanoseconds: Mapping[str, int]) -> dict[str, float]:
    """The same in seconds."""
    return {name: value / SECOND for name, value in nanoseconds.items()}
