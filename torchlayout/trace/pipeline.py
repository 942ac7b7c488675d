"""The pipeline's bubble: when a rank could do nothing because a neighbour had not computed what it needs.

An NCCL receive is wait and transfer in one, and on gloo only the wait of the host shows. So neither is asked: a
micro-batch was ready when the neighbour's computation ended, and idle moments and exposed messages before that are
bubble; what is left after it is the transfer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from torchlayout.schedule import Action, timeline
from torchlayout.trace.activity import Activity, Step, Work
from torchlayout.trace.intervals import EMPTY, Intervals, intersect, intervals, subtract, union
from torchlayout.trace.shares import Cut

# What can be waiting for a neighbour between the micro-batches of a rank, and after its last.
BETWEEN = ("idle", "communication/pp")
AFTER = ("idle", "communication/pp", "communication/world")


class Stretch(NamedTuple):
    """A part of a step in which a rank waits for its pipeline, if anything it does there is waiting."""

    part: str
    start: int
    end: int
    waits_as: tuple[str, ...]


class Finished:
    """When the ranks of a pipeline had computed what their neighbours need, in one step."""

    def __init__(self, work: Sequence[Work]) -> None:
        self.ends = {(one.phase, one.stage, one.micro_batch): one.end for one in work}
        self.end = max((one.end for one in work), default=0)

    def ready(self, work: Work) -> int | None:
        """When a micro-batch had what it needs of another stage; None where it needs nothing, or it isn't known."""
        if work.phase == "forward":
            return self.ends.get(("forward", work.stage - 1, work.micro_batch))
        if work.phase == "backward":
            return self.ends.get(("backward", work.stage + 1, work.micro_batch))
        return None


def charge_bubble(cut: Cut, work: Sequence[Work], finished: Finished) -> Cut:
    """A rank's cut in which waiting for its pipeline is bubble; work: its own, in the order of their start.

    Inside of a micro-batch no message is waited for, whether or not one is under way: what is not computed is idle.
    """
    shares = dict(cut.shares)
    _move(shares, union(intervals((one.start, one.end) for one in work)), "communication/pp", "idle")
    stretches = list(_stretches(cut.step, work, finished))
    for part in ("warmup", "steady", "drain"):
        for name in AFTER:
            waits = intervals((one.start, one.end) for one in stretches if one.part == part and name in one.waits_as)
            _move(shares, union(waits), name, f"bubble/{part}")
    kept = {name: spans for name, spans in shares.items() if len(spans)}
    waiting = {name: intersect(spans, kept.get(name, EMPTY)) for name, spans in cut.waiting.items()}
    return replace(cut, shares=kept, waiting={name: spans for name, spans in waiting.items() if len(spans)})


def _move(shares: dict[str, Intervals], moments: Intervals, source: str, target: str) -> None:
    moved = intersect(shares.get(source, EMPTY), moments)
    if len(moved):
        shares[source] = subtract(shares[source], moved)
        shares[target] = union(shares.get(target, EMPTY), moved)


def _stretches(step: Step, work: Sequence[Work], finished: Finished) -> Iterator[Stretch]:
    reached = step.start
    last_forward = max((one.start for one in work if one.phase == "forward"), default=step.start)
    gone_back = False
    for one in work:
        ready = min(finished.ready(one) or 0, one.start)
        if ready > reached:
            after = one.start > last_forward
            part = "drain" if after else "steady" if gone_back else "warmup"
            yield Stretch(part, reached, ready, BETWEEN)
        gone_back |= one.phase == "backward"
        reached = max(reached, one.end)
    if work and finished.end > reached:
        yield Stretch("drain", reached, min(finished.end, step.end), AFTER)


def schedule_bubble(by_rank: dict[int, list[Work]]) -> float | None:
    """The bubble that the schedule itself has, were all stages as fast as they were on average, and messages free.

    A fraction of the makespan, averaged over ranks; None where the marks do not make a whole schedule.
    """
    durations: dict[tuple[str, int], list[int]] = {}
    split = {(one.stage, one.micro_batch) for work in by_rank.values() for one in work if one.phase == "weight"}
    orders = []
    for rank in sorted(by_rank):
        order = [_action(one, split) for one in by_rank[rank]]
        for action, one in zip(order, by_rank[rank], strict=True):
            durations.setdefault((action.kind, action.stage), []).append(one.end - one.start)
        orders.append(order)
    if len(orders) < 2:
        return None
    mean = {key: sum(spent) / len(spent) for key, spent in durations.items()}
    try:
        played = timeline(orders, lambda action: mean[action.kind, action.stage])
    except (ValueError, KeyError):
        return None
    return sum(played.bubble(rank) for rank in range(len(orders))) / len(orders)


def _action(work: Work, split: Collection[tuple[int, int]]) -> Action:
    """In torch's letters: a backward is whole (B) unless its weights have a half of their own (I, W)."""
    if work.phase == "forward":
        return Action("F", work.stage, work.micro_batch)
    if work.phase == "weight":
        return Action("W", work.stage, work.micro_batch)
    return Action("I" if (work.stage, work.micro_batch) in split else "B", work.stage, work.micro_batch)


def pipelines(activities: Sequence[Activity]) -> list[list[Activity]]:
    """The ranks that are each other's stages, of those that were traced."""
    groups: dict[tuple[int, ...], list[Activity]] = {}
    for activity in activities:
        if activity.pipeline:
            groups.setdefault(activity.pipeline, []).append(activity)
    return [group for group in groups.values() if any(one.work for one in group)]
