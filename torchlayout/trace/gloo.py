"""Transfers of gloo, which says neither its group nor the collective that was asked for.

Both are taken from the operator that started a transfer and from where it was started. A reduce-scatter, for one, is
carried out by gloo as an all-reduce.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from torchlayout.trace.activity import Transfer
from torchlayout.trace.intervals import EMPTY, Intervals, inside, union
from torchlayout.trace.marks import Mark, Marks
from torchlayout.trace.names import POINT_TO_POINT, collective
from torchlayout.trace.rank import Columns, RankTrace, elements
from torchlayout.trace.read import whole

BACKEND = "gloo:"
# What gloo carries out for what was asked.
CARRIED_OUT = {"reduce_scatter": "all_reduce"}
WIDTH = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4}


class Issue(NamedTuple):
    """An operator that started a transfer."""

    at: int
    collective: str
    axis: str
    sizes: list[int]
    peer: int | None


def gloo_transfers(trace: RankTrace, marks: Marks) -> Iterator[Transfer]:
    """The transfers of a rank, each with the axis and the collective of the operator that started it."""
    waiting: defaultdict[str, list[Issue]] = defaultdict(list)
    for issue in _issues(trace, marks):
        waiting[CARRIED_OUT.get(issue.collective, issue.collective)].append(issue)
    for index, args in sorted(trace.carried.items()):
        start, end = int(trace.ranges.start[index]), int(trace.ranges.end[index])
        called = trace.names[int(trace.ranges.name[index])]
        kind = collective(called.removeprefix(BACKEND))
        size = max(elements(args), default=0)
        asked = _take(waiting[kind], start, size)
        if asked is None:
            yield Transfer(start, end, called, kind, "other")
        else:
            group = trace.along(asked.axis)
            moved = max([size, *asked.sizes]) * _width(args)
            told = (asked.collective, asked.axis, group, _peer(asked, group), moved, asked.at)
            yield Transfer(start, end, called, *told)


def _width(args: dict[str, Any]) -> int:
    """Bytes of an element of what is carried; 0 where the trace does not say."""
    told = args.get("Input type")
    return next((WIDTH[str(kind)] for kind in told if str(kind) in WIDTH), 0) if isinstance(told, list) else 0


def _take(waiting: list[Issue], start: int, size: int) -> Issue | None:
    """The earliest operator that this can be, removed from those that wait; they are few at a time."""
    for exact in (True, False):
        for index, issue in enumerate(waiting):
            if issue.at > start:
                break
            if size in issue.sizes or not exact:
                return waiting.pop(index)
    return None


def _issues(trace: RankTrace, marks: Marks) -> Iterator[Issue]:
    around = _Around(trace, marks)
    for index, args in sorted(trace.issued.items()):
        if int(trace.ops.thread[index]) != marks.thread:
            continue
        at = int(trace.ops.start[index])
        kind = collective(trace.names[int(trace.ops.name[index])].removeprefix("c10d::"))
        yield Issue(at, kind, around.axis(at, kind), elements(args), _told_peer(args, kind))


def _told_peer(args: dict[str, Any], kind: str) -> int | None:
    told = args.get("Concrete Inputs")
    if kind not in POINT_TO_POINT or not isinstance(told, list) or len(told) < 3 or not str(told[2]).isdecimal():
        return None
    return whole(str(told[2]))


def _peer(issue: Issue, group: tuple[int, ...]) -> int | None:
    """The peer's rank in the world, of its place in the group."""
    return group[issue.peer] if issue.peer is not None and issue.peer < len(group) else None


class _Around:
    """Where on the host a moment was: by ranges of FSDP and of the trainer, and by functional collectives."""

    def __init__(self, trace: RankTrace, marks: Marks) -> None:
        self.trace = trace
        self.fsdp = _named(trace, trace.ranges, "FSDP::")
        self.functional = _named(trace, trace.ops, "_c10d_functional::")
        self.loss = marks.phases.get("loss", EMPTY)
        self.marks = _outermost(mark for mark in marks.own if mark.range.phase != "step")
        self.starts = [mark.start for mark in self.marks]

    def axis(self, moment: int, kind: str) -> str:
        """The axis of a transfer that was started then: the likeliest that has more than one rank."""
        likely = self._likely(moment, kind)
        return next((name for name in likely if len(self.trace.along(name)) != 1), "world")

    def _likely(self, moment: int, kind: str) -> tuple[str, ...]:
        if _within(self.functional, moment):  # also inside of FSDP's hooks, where a norm's gradient is reduced over tp
            return ("tp",)
        if _within(self.fsdp, moment):
            return ("dp", "fsdp") if kind == "all_reduce" else ("fsdp",)
        if _within(self.loss, moment):  # over a sharded vocabulary
            return ("tp", "cp")
        mark = self._mark(moment)
        if mark is None:
            return ("pp",) if kind in POINT_TO_POINT else ("world",)
        if mark.range.phase == "evaluation":
            return ("pp", "cp") if kind in POINT_TO_POINT else ("cp",) if kind == "all_to_all" else ("world",)
        if mark.range.phase in ("forward", "backward", "weight"):
            # Rings and Ulysses send and exchange.
            return ("tp", "cp") if kind == "all_reduce" else ("cp", "tp")
        return ("pp",) if mark.range.phase == "reduce" else ("world",)

    def _mark(self, moment: int) -> Mark | None:
        last = bisect_right(self.starts, moment) - 1
        return self.marks[last] if last >= 0 and moment < self.marks[last].end else None


def _outermost(marks: Iterable[Mark]) -> list[Mark]:
    found: list[Mark] = []
    for mark in marks:
        if not found or mark.start >= found[-1].end:
            found.append(mark)
    return found


def _named(trace: RankTrace, columns: Columns, prefix: str) -> Intervals:
    chosen = np.array([name.startswith(prefix) for name in trace.names], dtype=bool)
    return union(columns.spans()[chosen[columns.name]])


def _within(spans: Intervals, moment: int) -> bool:
    return bool(inside(np.array([moment]), spans)[0])
