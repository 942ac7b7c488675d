"""Seconds that ranks wait for parameters to be gathered and for gradients to be reduced, in a whole step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchlayout.plan.job import WIDTH
from torchlayout.plan.time.block import Blocks, soft_maximum

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.shape import Shape
    from torchlayout.plan.time.links import Group
    from torchlayout.plan.time.stages import Stage, StageTime


def owned(blocks: Blocks, job: Job, stage: Stage) -> float:
    """Parameters of a stage on one tensor rank, before any sharding over data ranks."""
    key = (id(job.model), job.layout.tensor, job.sequence, stage)
    return blocks.once("owned", job, key, lambda: _owned(blocks.shape(job), stage, job.layout.tensor))


def _owned(shape: Shape, stage: Stage, tensor: int) -> float:
    total = stage.layers * (shape.matrices / tensor + shape.norms) + stage.first * shape.embedding / tensor
    if stage.last and not (shape.tied and stage.first):
        total += shape.head / tensor
    return total


def shard_group(blocks: Blocks, job: Job) -> Group:
    """The ranks over which parameters and optimizer states are sharded: shard x context."""
    layout = job.layout
    return blocks.links.group(layout.shard * layout.context, layout.tensor)


def shard_seconds(blocks: Blocks, job: Job, stage: Stage) -> float:
    """What FSDP's gathers and reductions add to a step: what computing does not hide, and what hiding costs."""
    layout, software, links = job.layout, blocks.software, blocks.links
    group = shard_group(blocks, job)
    if not software.fully_sharded or group.size * layout.replicate == 1:
        return 0.0
    held, wide = blocks.shape(job).matrices / layout.tensor, reduce_bytes(blocks, job)
    gather = links.gather(software.parameter_bytes * held, group)
    scatter = links.gather(wide * held, group)
    if layout.replicate > 1:
        replicas = links.group(layout.replicate, layout.tensor * layout.context * layout.shard)
        scatter += links.all_reduce(wide * held / group.size, replicas)
    block, rounds = blocks.block(job), _rounds(job)
    again = block.recompute.total * stage.recomputed / max(1, stage.layers)
    ends = 1 + (owned(blocks, job, stage) - stage.layers * held) / held
    # Each block's communication runs beside its own computing; what is first and last, and the ends, beside nothing.
    forward = stage.layers * hidden(blocks, block.forward.total, gather) + ends * gather
    backward = block.backward.total + again
    reduced = rounds.reductions
    gathered = min(rounds.backward_gathers, reduced) if layout.pipeline == 1 else 0
    both = hidden(blocks, backward, gather + scatter)
    alone = hidden(blocks, backward, gather) * (rounds.backward_gathers - gathered)
    # torch's stages reduce when the last backward is through.
    beside = backward if layout.pipeline == 1 else 0.0
    alone += hidden(blocks, beside, scatter) * (reduced - gathered)
    return rounds.forward_gathers * forward + stage.layers * (gathered * both + alone) + reduced * ends * scatter


class Rounds(NamedTuple):
    """How often in a step each block is gathered before its forward and before its backward, and reduced."""

    forward_gathers: int
    backward_gathers: int
    reductions: int


def _rounds(job: Job) -> Rounds:
    """zero3 gathers in each micro-batch, before forward and backward; zero2 before forward, under a pipeline once a
    step; zero1 once a step. Gradients are reduced in each micro-batch, under a pipeline and with zero1 once a step."""
    layout, m = job.layout, job.micro_batches
    once = layout.zero == 1 or layout.pipeline > 1
    if layout.zero == 3:
        return Rounds(m, m, 1 if once else m)
    return Rounds(1 if once else m, 0, 1 if once else m)


def hidden(blocks: Blocks, computing: float, sending: float) -> float:
    """Seconds that sending adds to computing beside it."""
    exposed = soft_maximum(computing, sending) - computing
    return exposed + blocks.calibration.links.overlap * min(computing, sending)


def reduce_bytes(blocks: Blocks, job: Job) -> float:
    """Bytes of a gradient when it is reduced."""
    given = blocks.software.reduce_bytes
    return WIDTH[job.reduce] if given is None else given


def reduce_seconds(blocks: Blocks, job: Job, stage: Stage, time: StageTime) -> float:
    """What the reduction of gradients over replicas adds to a step, and zero1's gathers after it."""
    layout, software, links = job.layout, blocks.software, blocks.links
    if layout.data_ranks * layout.context == 1:
        return 0.0
    if software.fully_sharded:
        return 0.0
    group = links.group(layout.data_ranks * layout.context, layout.tensor)
    held, wide = owned(blocks, job, stage), reduce_bytes(blocks, job)
    if layout.shard > 1 and software.reduce_method == "reduce-scatter":
        sending = links.gather(wide * held, group)
    else:
        sending = links.all_reduce(wide * held, group)
    gather = links.gather(software.parameter_bytes * held, group) if layout.shard > 1 else 0.0
    if software.reduce_overlap:
        return hidden(blocks, time.backward.total, sending) + gather
    return sending + gather
