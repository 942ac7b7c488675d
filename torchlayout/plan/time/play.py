"""The step with the pipeline's schedule played action by action by the one event engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchlayout.plan.memory.flight import representative
from torchlayout.plan.time.pipeline import pipeline_of
from torchlayout.plan.time.stages import StageTime
from torchlayout.plan.time.step import StepTime, hop_seconds, itemized, step_time
from torchlayout.schedule import Action, actions, timeline

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.time.block import Blocks


def played_step_time(blocks: Blocks, job: Job) -> StepTime:
    """The step by item; `bubble` and `hops` are what the busiest rank waits for in the played schedule."""
    if job.layout.pipeline == 1:
        return step_time(blocks, job)
    pipeline, hop = pipeline_of(blocks, job), hop_seconds(blocks, job)
    working = job.micro_batches * pipeline.busiest_seconds
    # Without transfers first: what they add to the makespan is theirs.
    exposed = hop if blocks.software.hops_exposed else 0.0
    waiting = _makespan(job, pipeline.times, 0.0, 0.0) - working
    with_hops = _makespan(job, pipeline.times, exposed, hop - exposed) - working
    return itemized(blocks, job, pipeline, max(0.0, waiting), max(0.0, with_hops - waiting))


def _makespan(job: Job, times: tuple[StageTime, ...], exposed: float, hop: float) -> float:
    """Seconds of all micro-batches; where there are many, a steady state is played for some and continued."""
    layout, m = job.layout, job.micro_batches
    few = representative(layout, m)
    if few == m:
        return _played(job, times, m, exposed, hop)
    # Two numbers of micro-batches in the steady state give what each further one takes.
    half = few - few // 2 if layout.virtual_stages == 1 else few - layout.pipeline
    longer, shorter = (_played(job, times, n, exposed, hop) for n in (few, half))
    return longer + (m - few) * (longer - shorter) / (few - half)


def _played(job: Job, times: tuple[StageTime, ...], micro_batches: int, exposed: float, hop: float) -> float:
    # An exposed transfer keeps its sender and its receiver: each stage waits once forward and once backward.
    forward = [time.forward_seconds + exposed for time in times]
    weight = [time.weight for time in times]
    whole = [time.total - time.forward_seconds + exposed for time in times]

    def seconds(action: Action) -> float:
        if action.kind == "F":
            return forward[action.stage]
        if action.kind == "W":
            return weight[action.stage]
        return whole[action.stage] - (weight[action.stage] if action.kind == "I" else 0.0)

    return timeline(actions(job.layout, micro_batches), seconds, hop).makespan
