"""A rank's step, cut into exclusive shares: every nanosecond is in one of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from torchlayout.trace.activity import CLASSES, Activity, Step, Transfer
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


Kind = tuple[str, str, int]
"""A kind of transfer: its axis, collective, and how many ranks take part (0: unknown)."""


def kind_of(transfer: Transfer) -> Kind:
    """What a transfer is counted with."""
    known = len(transfer.ranks) or (2 if transfer.peer is not None else 0)
    return transfer.axis, transfer.collective, known


def exposed_by_kind(activity: Activity, one: Cut) -> dict[Kind, int]:
    """Nanoseconds of exposed communication, each charged to one kind; of a send and a receipt at once, the receipt."""
    found: dict[Kind, int] = {}
    left = {axis: one.shares.get(f"communication/{axis}", EMPTY) for axis in AXES}
    for kind, spans in sorted(spans_by_kind(activity, one).items()):
        found[kind] = length(intersect(left[kind[0]], spans))
        left[kind[0]] = subtract(left[kind[0]], spans)
    return found


def by_collective(activity: Activity, one: Cut) -> dict[str, int]:
    """The same by collective alone."""
    found: defaultdict[str, int] = defaultdict(int)
    for (_, collective, _), spent in exposed_by_kind(activity, one).items():
        found[collective] += spent
    return {collective: spent for collective, spent in found.items() if spent}


def spans_by_kind(activity: Activity, one: Cut) -> dict[Kind, Intervals]:
    """When in a step transfers of each kind ran."""
    pairs: defaultdict[Kind, list[tuple[int, int]]] = defaultdict(list)
    for transfer in activity.transferring(one.step):
        pairs[kind_of(transfer)].append((transfer.start, transfer.end))
    return {kind: union(clip(intervals(spans), one.step.start, one.step.end)) for kind, spans in pairs.items()}
