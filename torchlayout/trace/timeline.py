"""timeline.json.gz: every rank's step as a lane of events, for the figure and for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchlayout.trace.activity import Activity, Work
from torchlayout.trace.breakdown import StepCuts
from torchlayout.trace.intervals import EMPTY, Intervals, intersect, intervals, subtract, union
from torchlayout.trace.shares import Cut

VERSION = 1
KINDS = (
    "forward",
    "backward",
    "weight",
    "bubble",
    "communication",
    "idle",
    "data",
    "optimizer",
    "checkpoint",
    "other",
)
# What a rank did is drawn on one track, its transfers on another.
DOING, TRANSFERRING = 0, 1
# Pieces below this part of the step are not drawn on their own: what is around them is.
FINEST = 1 / 4000
MICROSECOND = 1000


class Piece(NamedTuple):
    """An event of a lane before it is written, in nanoseconds; stage, micro_batch: -1 for none."""

    start: int
    end: int
    track: int
    kind: str
    name: str
    stage: int = -1
    micro_batch: int = -1
    bytes: int = 0


class _Names:
    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self.index.setdefault(name, len(self.index))


def timeline_document(activities: Sequence[Activity], steps: Sequence[StepCuts]) -> dict[str, Any]:
    """The document: events are [start_us, duration_us, track, kind, name, stage, micro_batch, bytes]."""
    names = _Names()
    by_rank = {activity.rank: activity for activity in activities}
    written = []
    for step in steps:
        lanes = [
            {"rank": rank, "events": [_event(piece, step.start, names) for piece in pieces(by_rank[rank], one)]}
            for rank, one in sorted(step.cuts.items())
        ]
        written.append({"step": step.number, "seconds": step.seconds, "lanes": lanes})
    return {"version": VERSION, "kinds": list(KINDS), "names": list(names.index), "steps": written}


def _event(piece: Piece, start: int, names: _Names) -> list[float | int]:
    return [
        (piece.start - start) / MICROSECOND,
        (piece.end - piece.start) / MICROSECOND,
        piece.track,
        KINDS.index(piece.kind),
        names.of(piece.name),
        piece.stage,
        piece.micro_batch,
        piece.bytes,
    ]


def pieces(activity: Activity, one: Cut) -> list[Piece]:
    """A rank's step as pieces, in the order of their start."""
    return sorted([*_doing(activity, one), *_transferring(activity, one)])


def _doing(activity: Activity, one: Cut) -> Iterator[Piece]:
    """What the rank did: exclusive pieces. Inside a micro-batch only what interrupts it long enough shows."""
    finest = int((one.step.end - one.step.start) * FINEST)
    interrupting = EMPTY
    for name, spans in one.shares.items():
        family = name.split("/")[0]
        if family not in ("compute", "idle"):
            shown = spans[spans[:, 1] - spans[:, 0] >= finest]
            interrupting = union(interrupting, shown)
            yield from (Piece(int(start), int(end), DOING, family, name) for start, end in shown)
    left = subtract(intervals([(one.step.start, one.step.end)]), interrupting)
    works = activity.working(one.step)
    spans = _one_by_one(works)
    taken = intersect(left, spans[spans[:, 1] > spans[:, 0]])
    left = subtract(left, taken)
    # Of those that start there the last is not empty.
    owners = np.searchsorted(spans[:, 0], taken[:, 0], side="right") - 1
    yield from (_worked(start, end, works[owner]) for (start, end), owner in zip(taken, owners, strict=True))
    computed = union(*(spans for name, spans in one.shares.items() if name.startswith("compute/")))
    for kind, spans in (("other", intersect(left, computed)), ("idle", subtract(left, computed))):
        yield from (
            Piece(int(start), int(end), DOING, kind, kind)
            for start, end in _joined(spans, finest)
            if end - start >= finest
        )


def _one_by_one(works: Sequence[Work]) -> Intervals:
    """When each micro-batch is worked on; where two overlap on a device, the first has it."""
    spans = intervals((work.start, work.end) for work in works)
    spans[1:, 0] = np.maximum(spans[1:, 0], np.maximum.accumulate(spans[:-1, 1]))
    return spans


def _worked(start: int, end: int, work: Work) -> Piece:
    return Piece(int(start), int(end), DOING, work.phase, work.phase, work.stage, work.micro_batch)


def _joined(spans: Intervals, gap: int) -> Intervals:
    """Intervals with the gaps that nobody could see closed."""
    if len(spans) < 2:
        return spans
    apart = spans[1:, 0] - spans[:-1, 1] > gap
    first = np.append(True, apart)
    last = np.append(apart, True)
    return np.stack([spans[first, 0], spans[last, 1]], axis=1)


def _transferring(activity: Activity, one: Cut) -> Iterator[Piece]:
    for transfer in activity.transferring(one.step):
        start, end = max(transfer.start, one.step.start), min(transfer.end, one.step.end)
        name = f"{transfer.collective} ({transfer.axis})"
        yield Piece(start, end, TRANSFERRING, "communication", name, bytes=transfer.bytes)
