"""The stages of a job with their times, and the pipeline rank that has most to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlayout.layout.words import V_SCHEDULES
from torchlayout.plan.time.block import Blocks, Work
from torchlayout.plan.time.stages import Stage, StageTime, stage_time, stages

if TYPE_CHECKING:
    from torchlayout.plan.job import Job


@dataclass(frozen=True)
class Pipeline:
    """Seconds for one micro-batch: of each stage, of each rank, and of the busiest rank by item."""

    times: tuple[StageTime, ...]
    pieces: tuple[tuple[Stage, StageTime], ...]
    """Each kind of stage once."""
    busiest_seconds: float
    of_others: float
    """Seconds of all other ranks together."""
    slowest: StageTime
    """A stage of the busiest rank."""
    work: Work
    head: float
    recompute: float


def pipeline_of(blocks: Blocks, job: Job) -> Pipeline:
    """The job's stages priced."""
    layout = job.layout
    folded = layout.schedule in V_SCHEDULES
    key = (blocks.piece(job), layout.pipeline, layout.virtual_stages, folded, layout.recompute)
    return blocks.once("pipeline", job, key, lambda: _pipeline(blocks, job))


def _pipeline(blocks: Blocks, job: Job) -> Pipeline:
    layout, kinds = job.layout, stages(blocks, job)
    priced = {kind: stage_time(blocks, job, kind) for kind in dict.fromkeys(kinds)}
    times = tuple(priced[kind] for kind in kinds)
    ranks = [sum(times[stage].total for stage in layout.stages_of(rank)) for rank in range(layout.pipeline)]
    busiest = max(range(len(ranks)), key=ranks.__getitem__)
    mine = [times[stage] for stage in layout.stages_of(busiest)]
    work = Work()
    for time in mine:
        work = work.plus(time.forward).plus(time.backward).plus(Work(launch=time.fixed))
    return Pipeline(
        times=times,
        pieces=tuple(priced.items()),
        busiest_seconds=ranks[busiest],
        of_others=sum(ranks) - ranks[busiest],
        slowest=mine[0],
        work=work,
        head=sum(time.head for time in mine),
        recompute=sum(time.recompute.total for time in mine),
    )
