"""What was marked on the host: the trainer's ranges, and those that torch itself gives any loop."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from torchlayout.trace.activity import Step, Work
from torchlayout.trace.intervals import Intervals, intervals, union
from torchlayout.trace.ranges import Range
from torchlayout.trace.rank import Columns, RankTrace

PROFILER_STEP = re.compile(r"ProfilerStep#([0-9]{1,15})")
# Marks of torch for what the trainer's ranges say in loops that are not ours.
FOREIGN = (("optimizer", re.compile(r"Optimizer\.step#")), ("data", re.compile(r"enumerate\(DataLoader\)#")))


Meaning = TypeVar("Meaning")


class Mark(NamedTuple):
    """A range of the trainer, with its nanoseconds."""

    range: Range
    start: int
    end: int

    def work(self, start: int, end: int) -> Work:
        """What it marks of a micro-batch, computed from one moment to another."""
        return Work(self.range.phase, self.range.stage or 0, self.range.micro_batch or 0, start, end)


class Marks(NamedTuple):
    """All marks of a rank; thread: the one that runs the loop."""

    own: list[Mark]
    steps: tuple[Step, ...]
    phases: dict[str, Intervals]
    thread: int


def read_marks(trace: RankTrace) -> Marks:
    """The marks of a trace. Without any, all of it counts as one step, number 0."""
    own = [
        Mark(known, int(trace.ranges.start[index]), int(trace.ranges.end[index]))
        for index, known in _known(trace, Range.parse)
    ]
    phases: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for mark in own:
        phases[mark.range.phase].append((mark.start, mark.end))
    if not own:
        for index, phase in _known(trace, _foreign_phase):
            phases[phase].append((int(trace.ranges.start[index]), int(trace.ranges.end[index])))
    joined = {phase: union(intervals(pairs)) for phase, pairs in phases.items()}
    return Marks(own, _steps(trace, own), joined, _loop_thread(trace))


def _known(trace: RankTrace, meaning: Callable[[str], Meaning | None]) -> Iterator[tuple[int, Meaning]]:
    """Ranges whose name means something: their index, and what."""
    by_name = {index: found for index, name in enumerate(trace.names) if (found := meaning(name)) is not None}
    for index, name in enumerate(trace.ranges.name.tolist()):
        if name in by_name:
            yield index, by_name[name]


def _foreign_phase(name: str) -> str | None:
    return next((phase for phase, pattern in FOREIGN if pattern.match(name)), None)


def _profiler_step(name: str) -> int | None:
    found = PROFILER_STEP.fullmatch(name)
    return None if found is None else int(found[1])


def _steps(trace: RankTrace, own: list[Mark]) -> tuple[Step, ...]:
    steps = [Step(mark.range.step or 0, mark.start, mark.end) for mark in own if mark.range.phase == "step"]
    if not steps:
        starts, ends = trace.ranges.start, trace.ranges.end
        steps = [Step(number, int(starts[at]), int(ends[at])) for at, number in _known(trace, _profiler_step)]
    steps = [step for step in steps if step.end > step.start]
    if not steps:
        held = [columns for columns in (trace.ops, trace.ranges, trace.kernels) if len(columns)]
        start, end = min(int(part.start.min()) for part in held), max(int(part.end.max()) for part in held)
        steps = [Step(0, start, max(end, start + 1))]
    return tuple(sorted(steps, key=lambda step: step.start))


def _loop_thread(trace: RankTrace) -> int:
    """The thread that holds the marks of steps; without them the one that is longest in operators."""
    marked = [
        int(trace.ranges.thread[index])
        for index, name in enumerate(trace.ranges.name.tolist())
        if _profiler_step(trace.names[name]) is not None
        or ((known := Range.parse(trace.names[name])) is not None and known.phase == "step")
    ]
    if marked:
        return marked[0]
    columns = trace.ops if len(trace.ops) else trace.launches
    return _longest(columns)


def _longest(columns: Columns) -> int:
    if not len(columns):
        return 0
    return int(np.bincount(columns.thread, weights=columns.end - columns.start).argmax())
