"""Seconds that ranks wait for parameters to be gathered and for gradients to be reduced, in a whole step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchlayout.plan.block import Blocks, soft_maximum
from torchlayout.plan.job import WIDTH

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.links import Group
    from torchlayout.plan.shape import Shape
    from torchlayout.plan.stages import Stage, StageTime


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


def shard_seconds(blocks: Blocks, job: Job, stage: Stage, time: StageTime) -> float:
    """What FSDP's gathers and scatters add to a step: what computing does not hide, and what hiding costs.

    zero3 gathers each block before its forward and before its backward, zero2 before its forward, and both reduce
    after each backward; under a pipeline and with zero1 each happens once a step.
    """
    layout, software = job.layout, blocks.software
    group = shard_group(blocks, job)
    if group.size == 1 or (layout.zero == 1 and not software.fully_sharded):
        return 0.0
    gathers, scatters, rounds = _gathers(job)
    links, block = blocks.links, blocks.block(job)
    held = blocks.shape(job).matrices / layout.tensor
    gather = links.gather(software.parameter_bytes * held, group)
    scatter = links.gather(reduce_bytes(blocks, job) * held, group)
    if layout.replicate > 1:
        replicas = links.group(layout.replicate, layout.tensor * layout.context * layout.shard)
        scatter += links.all_reduce(reduce_bytes(blocks, job) * held / group.size, replicas)
    again = block.recompute.total * stage.recomputed / max(1, stage.layers)
    forward = hidden(blocks, block.forward.total, gather)
    backward = hidden(blocks, block.backward.total + again, scatter + (gathers - 1) * gather)
    rest = (owned(blocks, job, stage) - stage.layers * held) / held
    ends = (gather + scatter) * (1 + rest)
    return rounds * (stage.layers * (forward + backward) + ends)


def _gathers(job: Job) -> tuple[int, int, int]:
    """(gathers, scatters, times a step) of each block."""
    layout = job.layout
    once = layout.zero == 1 or layout.pipeline > 1
    return (2 if layout.zero == 3 else 1), 1, (1 if once else job.micro_batches)


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
    if software.fully_sharded and layout.shard * layout.context > 1:
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
