"""A rank's step, cut into exclusive shares: every nanosecond is in one of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from torchlayout.trace.activity import CLASSES, Activity, Step
from torchlayout.trace.intervals import EMPTY, Intervals, clip, intersect, intervals, length, subtract, union
from torchlayout.trace.meet import Meetings
from torchlayout.trace.names import AXES

# In the order in which they are drawn.
SHARES = (
    *(f"compute/{kind}" for kind in CLASSES),
    *(f"communication/{axis}" for axis in AXES),
    *(f"bubble/{part}" for part in ("warmup", "steady", "drain")),
    "idle",
    "data",
    "optimizer",
    "checkpoint",
)
# Where transfers along two axes are exposed at once, the one that computation waits for more directly is charged.
CHARGED_FIRST = ("tp", "cp", "fsdp", "dp", "world", "other", "pp")


@dataclass(frozen=True)
class Cut:
    """The shares of a step as disjoint intervals that cover it, and what lies behind computation.

    waiting: the part of each exposed communication before the last rank had come to it.
    """

    step: Step
    shares: dict[str, Intervals]
    hidden: dict[str, Intervals]
    waiting: dict[str, Intervals]

    def nanoseconds(self) -> dict[str, int]:
        """How long each share is; they sum to the step."""
        return {name: length(spans) for name in SHARES if len(spans := self.shares.get(name, EMPTY))}


def cut(activity: Activity, step: Step, meetings: Meetings) -> Cut:
    """Charge each moment of a step to the first that claims it.

    In turn: checkpoint, optimizer, computation by class, waiting for data, communication by axis; what is left is idle.
    """
    left = intervals([(step.start, step.end)])
    shares: dict[str, Intervals] = {}

    def charge(name: str, spans: Intervals) -> None:
        nonlocal left
        taken = intersect(left, union(clip(spans, step.start, step.end)))
        if len(taken):
            shares[name] = union(shares.get(name, EMPTY), taken)
            left = subtract(left, taken)

    charge("checkpoint", activity.phase("checkpoint"))
    charge("optimizer", activity.optimizer)
    for kind, spans in activity.within(step).items():
        charge(f"compute/{kind}", spans)
    charge("data", activity.phase("data"))
    exposable = left
    transfers = list(activity.transferring(step))
    spans_of = {axis: union(intervals(one[:2] for one in transfers if one.axis == axis)) for axis in CHARGED_FIRST}
    for axis, spans in spans_of.items():
        charge(f"communication/{axis}", spans)
    shares["idle"] = left
    whole = intervals([(step.start, step.end)])
    hidden = {f"communication/{axis}": subtract(intersect(spans, whole), exposable) for axis, spans in spans_of.items()}
    return Cut(
        step,
        shares,
        {name: spans for name, spans in hidden.items() if len(spans)},
        _waiting(activity, step, meetings, shares),
    )


def _waiting(activity: Activity, step: Step, meetings: Meetings, shares: dict[str, Intervals]) -> dict[str, Intervals]:
    waits: dict[str, list[tuple[int, int]]] = {}
    for transfer in activity.transferring(step):
        last = meetings.last_start(activity.rank, transfer)
        if last is not None and last > transfer.start:
            waits.setdefault(f"communication/{transfer.axis}", []).append((transfer.start, min(last, transfer.end)))
    found = {name: intersect(union(intervals(pairs)), shares.get(name, EMPTY)) for name, pairs in waits.items()}
    return {name: spans for name, spans in found.items() if len(spans)}


def by_collective(activity: Activity, one: Cut) -> dict[str, int]:
    """Nanoseconds of exposed communication by collective; of a send and a receipt at once it is the receipt's."""
    found: defaultdict[str, int] = defaultdict(int)
    transfers = list(activity.transferring(one.step))
    for axis in AXES:
        left = one.shares.get(f"communication/{axis}", EMPTY)
        for kind in sorted({transfer.collective for transfer in transfers if transfer.axis == axis}):
            spans = union(intervals(each[:2] for each in transfers if (each.axis, each.collective) == (axis, kind)))
            found[kind] += length(intersect(left, spans))
            left = subtract(left, spans)
    return {kind: spent for kind, spent in found.items() if spent}
