"""Seconds of an optimizer step, by item, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlayout.layout.words import ZERO_BUBBLE_SCHEDULES
from torchlayout.plan.time.block import Blocks
from torchlayout.plan.time.pipeline import Pipeline, pipeline_of
from torchlayout.plan.time.sharding import owned, reduce_seconds, shard_seconds
from torchlayout.plan.time.stages import Stage, StageTime

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
        return float(sum(self.__dict__.values()))


def step_time(blocks: Blocks, job: Job) -> StepTime:
    """The step in closed form: the busiest rank's work, what fills and drains the pipeline, and what comes once."""
    pipeline = pipeline_of(blocks, job)
    waiting = pipeline.of_others * fill_fraction(job, pipeline.slowest) / job.layout.virtual_stages
    return itemized(blocks, job, pipeline, waiting, hops_seconds(blocks, job, hop_seconds(blocks, job)))


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


def itemized(blocks: Blocks, job: Job, pipeline: Pipeline, bubble: float, hops: float) -> StepTime:
    """The step of the busiest pipeline rank by item, given how long it waits for others."""
    m, virtual = job.micro_batches, job.layout.virtual_stages
    once = blocks.calibration.launch.step_seconds
    pieces = pipeline.pieces
    return StepTime(
        matmul=m * pipeline.work.matmul,
        attention=m * pipeline.work.attention,
        elementwise=m * pipeline.work.elementwise,
        head=m * pipeline.head,
        recompute=m * pipeline.recompute,
        launch=m * pipeline.work.launch,
        tensor=m * pipeline.work.tensor,
        context=m * pipeline.work.context,
        shard=virtual * max(shard_seconds(blocks, job, stage) for stage, _ in pieces),
        bubble=bubble,
        hops=hops,
        reduce=virtual * max(reduce_seconds(blocks, job, stage, time) for stage, time in pieces),
        optimizer=virtual * max(_optimizer(blocks, job, stage) for stage, _ in pieces),
        fixed=once,
    )


def _optimizer(blocks: Blocks, job: Job, stage: Stage) -> float:
    numbers = blocks.calibration.state
    held = owned(blocks, job, stage)
    mine = held / (job.layout.shard * job.layout.context)
    seconds = blocks.kernels.traffic(numbers.owned_bytes * mine + numbers.held_bytes * held)
    return seconds + blocks.calibration.launch.optimizer_block_seconds * stage.layers
