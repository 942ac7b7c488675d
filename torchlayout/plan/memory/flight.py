"""How many micro-batches each pipeline rank holds at once, from the schedule itself."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from torchlayout.layout import Layout
from torchlayout.layout.rules import accepts
from torchlayout.schedule import Action, actions

if TYPE_CHECKING:
    from torchlayout.plan.job import Job

Held = tuple[tuple[int, int], ...]
"""(stage, micro-batches whose activations it holds) for each stage of a rank, at the rank's fullest moment."""


def in_flight(job: Job) -> tuple[Held, ...]:
    """What each pipeline rank holds at its fullest moment."""
    layout, m = job.layout, job.micro_batches
    if layout.pipeline == 1:
        return (((0, 1),),)
    if layout.schedule == "1f1b":
        return _one_forward_one_backward(layout.pipeline, m)
    if layout.schedule in ("gpipe", "looped"):
        return tuple(tuple((stage, m) for stage in layout.stages_of(rank)) for rank in range(layout.pipeline))
    return _counted(layout.schedule, layout.pipeline, layout.virtual_stages, representative(layout, m))


def representative(layout: Layout, micro_batches: int) -> int:
    """So many micro-batches, at most, already show how a schedule fills, runs steadily and drains."""
    few = 4 * layout.pipeline
    return few if micro_batches > few and accepts(layout, few) else micro_batches


@lru_cache(maxsize=4096)
def _one_forward_one_backward(ranks: int, micro_batches: int) -> tuple[Held, ...]:
    return tuple(((rank, min(ranks - rank, micro_batches)),) for rank in range(ranks))


@lru_cache(maxsize=4096)
def _counted(schedule: str, pipeline: int, virtual: int, micro_batches: int) -> tuple[Held, ...]:
    layout = Layout(pipeline=pipeline, schedule=schedule, virtual_stages=virtual)
    return tuple(_fullest(order) for order in actions(layout, micro_batches))


def _fullest(order: tuple[Action, ...]) -> Held:
    """A forward takes a micro-batch, a full backward gives it back; of a split one only the weight gradient does."""
    held = {action.stage: 0 for action in order}
    most, fullest = 0, dict(held)
    now = 0
    for action in order:
        change = {"F": 1, "B": -1, "W": -1, "I": 0}[action.kind]
        held[action.stage] += change
        now += change
        if now > most:
            most, fullest = now, dict(held)
    return tuple(sorted(fullest.items()))
