"""Seconds of an optimizer step, by item, in closed form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from torchlayout.layout.words import ZERO_BUBBLE_SCHEDULES
from torchlayout.plan.block import Blocks, Work
from torchlayout.plan.sharding import owned, reduce_seconds, shard_seconds
from torchlayout.plan.stages import Stage, StageTime, stage_time, stages

if TYPE_CHECKING:
    from torchlayout.plan.job import Job


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step on the slowest pipeline rank, by item; `seconds` is their sum."""

    matmul: float
    attention: float
    elementwise: float
    head: float
    recompute: float
    launch: float
    tensor: float
    context: float
    shard: float
    bubble: float
    hops: float
    reduce: float
    optimizer: float
    fixed: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return float(sum(getattr(self, field.name) for field in fields(self)))


def step_time(blocks: Blocks, job: Job) -> StepTime:
    """The step in closed form: the busiest rank's work, what fills and drains the pipeline, and what comes once."""
    times = stage_times(blocks, job)
    ranks = rank_seconds(job, times)
    busiest = max(range(len(ranks)), key=ranks.__getitem__)
    hop = hop_seconds(blocks, job)
    bubble = fill_fraction(job, times[busiest]) * (sum(ranks) - ranks[busiest]) / job.layout.virtual_stages
    return itemized(blocks, job, times, busiest, bubble, hops_seconds(blocks, job, hop))


def stage_times(blocks: Blocks, job: Job) -> list[StageTime]:
    """What each stage costs for one micro-batch, in order."""
    priced: dict[Stage, StageTime] = {}
    kinds = stages(job, blocks.software)
    for kind in kinds:
        if kind not in priced:
            priced[kind] = stage_time(blocks, job, kind)
    return [priced[kind] for kind in kinds]


def rank_seconds(job: Job, times: list[StageTime]) -> list[float]:
    """Seconds of each pipeline rank for one micro-batch through all of its stages."""
    layout = job.layout
    if layout.virtual_stages == 1:
        return [time.total for time in times]
    return [sum(times[stage].total for stage in layout.stages_of(rank)) for rank in range(layout.pipeline)]


def fill_fraction(job: Job, time: StageTime) -> float:
    """Part of a stage's time by which the pipeline fills and drains: all of it, or less where weight gradients wait.

    zerobubble leaves forward + input gradient - weight gradient (ZB-H1 of arXiv 2401.10241), zbv and dualpipev leave
    what is left when two weight gradients fill it.
    """
    schedule = job.layout.schedule
    if schedule not in ZERO_BUBBLE_SCHEDULES or time.total == 0:
        return 1.0
    weights = (1 if schedule == "zerobubble" else 2) * time.weight
    return max(0.0, (time.total - time.weight - weights) / time.total)


def hop_seconds(blocks: Blocks, job: Job) -> float:
    """Seconds of one transfer of activations or gradients to another pipeline rank."""
    layout = job.layout
    if layout.pipeline == 1:
        return 0.0
    across = layout.tensor if layout.sequence_parallel else 1
    return blocks.links.hop(2.0 * job.tokens * blocks.shape(job).hidden / across)


def hops_seconds(blocks: Blocks, job: Job, hop: float) -> float:
    """What transfers add to a step: two in each micro-batch where ranks wait for them, else those of the filling."""
    layout = job.layout
    if layout.pipeline == 1:
        return 0.0
    if blocks.software.hops_exposed:
        return 2 * hop * (job.micro_batches * layout.virtual_stages + layout.pipeline - 1)
    return 2 * hop * (layout.pipeline - 1)


def itemized(
    blocks: Blocks, job: Job, times: list[StageTime], rank: int, bubble: float, hops: float
) -> StepTime:
    """The step of one pipeline rank by item, given how long it waits for others."""
    layout, m = job.layout, job.micro_batches
    kinds = stages(job, blocks.software)
    mine = layout.stages_of(rank)
    forward = reduce_work(times[stage].forward for stage in mine)
    backward = reduce_work(times[stage].backward for stage in mine)
    pairs = set(zip(kinds, times, strict=True))
    return StepTime(
        matmul=m * (forward.matmul + backward.matmul),
        attention=m * (forward.attention + backward.attention),
        elementwise=m * (forward.elementwise + backward.elementwise),
        head=m * sum(times[stage].head for stage in mine),
        recompute=m * sum(times[stage].recompute.total for stage in mine),
        launch=m * (forward.launch + backward.launch + sum(times[stage].fixed for stage in mine)),
        tensor=m * (forward.tensor + backward.tensor),
        context=m * (forward.context + backward.context),
        shard=layout.virtual_stages * max(shard_seconds(blocks, job, kind, time) for kind, time in pairs),
        bubble=bubble,
        hops=hops,
        reduce=layout.virtual_stages * max(reduce_seconds(blocks, job, kind, time) for kind, time in pairs),
        optimizer=layout.virtual_stages * max(_optimizer(blocks, job, kind) for kind, _ in pairs),
        fixed=blocks.calibration.launch.step_seconds,
    )


def reduce_work(pieces: Iterable[Work]) -> Work:
    """Their sum, item by item."""
    total = Work()
    for piece in pieces:
        total = total.plus(piece)
    return total


def _optimizer(blocks: Blocks, job: Job, stage: Stage) -> float:
    numbers = blocks.calibration.state
    held = owned(blocks, job, stage)
    mine = held / (job.layout.shard * job.layout.context)
    seconds = blocks.kernels.traffic(numbers.owned_bytes * mine + numbers.held_bytes * held)
    return seconds + blocks.calibration.launch.optimizer_block_seconds * stage.layers
