"""The activity of a rank that computes on its host: operators, less what only waits inside them."""

from __future__ import annotations

from collections import defaultdict

from torchlayout.trace.activity import CLASSES, Activity, Work
from torchlayout.trace.gloo import gloo_transfers
from torchlayout.trace.intervals import EMPTY, intersect, intervals, union
from torchlayout.trace.kernels import count_kernels
from torchlayout.trace.marks import Marks, read_marks
from torchlayout.trace.names import kernel_class
from torchlayout.trace.rank import Columns, RankTrace

# Operators that compute nothing themselves: Python between them, the autograd engine, starting or awaiting a transfer.
WRAPPERS = ("autograd::", "torch::autograd::", "c10d::", "_c10d_functional::", "record_param_comms", "profiler::")


def host_activity(trace: RankTrace) -> Activity:
    """What the operators of the thread that runs the loop did."""
    marks = read_marks(trace)
    ops = trace.ops.where(trace.ops.thread == marks.thread)
    kinds = [_kind(name) for name in trace.names]
    spans = innermost(ops, kinds)
    compute = {kind: union(intervals(spans.get(kind, ()))) for kind in CLASSES}
    optimizer = intersect(union(*compute.values()), marks.phases.get("optimizer", EMPTY))
    return Activity(
        rank=trace.rank,
        host=trace.host,
        device=trace.device,
        device_name=trace.device_name,
        world=trace.world,
        steps=marks.steps,
        compute=compute,
        optimizer=optimizer,
        phases=marks.phases,
        work=_work(marks),
        transfers=tuple(gloo_transfers(trace, marks)),
        kernels=count_kernels(ops, trace.names, kinds, marks.steps),
        pipeline=trace.pipeline,
        notes=trace.notes,
    )


def _kind(name: str) -> str | None:
    """The class of an operator, None for what only wraps others."""
    return None if "::" not in name or name.startswith(WRAPPERS) else kernel_class(name)


def innermost(ops: Columns, kinds: list[str | None]) -> dict[str, list[tuple[int, int]]]:
    """When which class computes: at each moment the innermost operator of a thread decides.

    ops must be of one thread and sorted. An operator that holds a wrapper (a hook, a tensor subclass) waits for it, so
    only what is inside counts of it.
    """
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    stack: list[_Open] = []
    rows = zip(ops.start.tolist(), ops.end.tolist(), ops.name.tolist(), strict=True)
    for start, end, name in rows:
        while stack and stack[-1].end <= start:
            stack.pop().close(found, stack)
        kind = kinds[name]
        if kind is None:
            for opened in stack:
                opened.kind = None
        if stack:
            stack[-1].pause(start)
        stack.append(_Open(start, end, kind))
    while stack:
        stack.pop().close(found, stack)
    return found


class _Open:
    """An operator that has begun: when it was the innermost one."""

    __slots__ = ("end", "kind", "own", "since")

    def __init__(self, start: int, end: int, kind: str | None) -> None:
        self.since, self.end, self.kind = start, end, kind
        self.own: list[tuple[int, int]] = []

    def pause(self, moment: int) -> None:
        if moment > self.since:
            self.own.append((self.since, moment))

    def close(self, found: defaultdict[str, list[tuple[int, int]]], stack: list[_Open]) -> None:
        self.pause(self.end)
        if self.kind is not None:
            found[self.kind] += self.own
        if stack:
            stack[-1].since = max(self.end, stack[-1].since)


def _work(marks: Marks) -> tuple[Work, ...]:
    found = [mark.work(mark.start, mark.end) for mark in marks.own if mark.range.micro_batch is not None]
    return tuple(sorted(found, key=lambda work: work.start))
