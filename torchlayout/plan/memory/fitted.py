"""Memory of a rank in a stack that is known by its description: formulas with fitted coefficients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchlayout.plan.memory.peak import GIB, Memory, base_bytes
from torchlayout.plan.time.sharding import owned, reduce_bytes
from torchlayout.plan.time.stages import Stage

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.time.block import Blocks

MOST_IN_FLIGHT = 8
"""Micro-batches in flight after which further ones leave no more holes: so in peaks of 2 to 32 pipeline ranks."""
MOST_STREAMED = 2
"""Micro-batches whose tensors wait for another stream at once: one runs while the next begins."""


def fitted_memory(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...]) -> Memory:
    """The peak of a rank with these stages, each with the micro-batches it holds."""
    numbers = blocks.calibration.memory
    states = _states(blocks, job, held)
    gathered = _gathered(blocks, job, held)
    kept = _kept(blocks, job, held)
    block = block_bytes(blocks, job) if any(stage.recomputed for stage, _ in held) else 0.0
    work = _workspace(blocks, job)
    logits = _logits(blocks, job) if any(stage.last for stage, _ in held) else 0.0
    # A block's backward and the loss come one after the other; the allocator reuses most of the larger for the smaller.
    if block >= logits:
        logits *= numbers.reuse
    else:
        block *= numbers.reuse
    inside = sum(states) + gathered + kept + block + logits + work
    holes = numbers.fragmentation * _holes(blocks, job, held, kept)
    pressed = min(1.0, numbers.pressed) * holes
    return Memory(
        *states,
        gathered=gathered,
        activations=kept,
        recomputed=block,
        logits=logits,
        workspace=work,
        fragmentation=(numbers.fragmentation - 1) * inside + pressed,
        base=base_bytes(blocks, job) + _reduced(blocks, job, held),
        spare=holes - pressed,
    )


def _states(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...]) -> tuple[float, float, float]:
    """Parameters, gradients and optimizer states, by what the stack shards."""
    layout, software = job.layout, blocks.software
    whole = sum(owned(blocks, job, stage) for stage, _ in held)
    ranks = layout.shard * layout.context
    if software.fully_sharded and ranks > 1:
        wide = software.parameter_bytes * whole if layout.zero == 1 else 0.0
        return wide, software.gradient_bytes * whole / ranks, software.optimizer_bytes * whole / ranks
    gradients = software.gradient_bytes + software.accumulation_bytes
    return software.parameter_bytes * whole, gradients * whole, software.optimizer_bytes * whole / ranks


def _reduced(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...]) -> float:
    """What reducing beside backward takes; under a pipeline nothing is reduced yet at the fullest moment."""
    layout, software = job.layout, blocks.software
    if not software.reduce_overlap or software.fully_sharded or layout.pipeline > 1 or layout.data_ranks == 1:
        return 0.0
    whole = sum(owned(blocks, job, stage) for stage, _ in held)
    return blocks.calibration.memory.reduced * reduce_bytes(blocks, job) * whole


def _gathered(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...]) -> float:
    """Blocks that FSDP has gathered, and one block's whole gradient."""
    layout, software = job.layout, blocks.software
    if not software.fully_sharded or layout.shard * layout.context == 1 or layout.zero == 1:
        return 0.0
    block = blocks.shape(job).matrices / layout.tensor
    layers = sum(stage.layers for stage, _ in held)
    at_once = min(layers, 1 + software.prefetch) if layout.zero == 3 else layers
    return software.parameter_bytes * block * (at_once + 1)


def block_bytes(blocks: Blocks, job: Job) -> float:
    """What one block keeps of a micro-batch for its backward."""
    layout, numbers, shape, tokens = job.layout, blocks.calibration.memory, blocks.shape(job), job.tokens
    across = layout.tensor if layout.sequence_parallel else 1
    inputs = 1 if blocks.software.gathered_inputs else across
    kept = 4 * tokens * shape.hidden / across + 4 * tokens * shape.hidden / inputs
    kept += numbers.attention_bytes * tokens * shape.hidden / layout.tensor
    kept += inner_tensors(blocks) * 2 * tokens * shape.inner / layout.tensor
    if layout.norm == "eager":
        kept += numbers.eager_norm_bytes * tokens * shape.hidden / across
    scores = layout.micro_batch * job.sequence**2 * shape.heads / layout.tensor / layout.context
    if job.attention == "unfused":
        kept += numbers.score_bytes * scores
    elif job.attention == "fused-softmax":
        kept += numbers.fused_score_bytes * scores
    return kept


def inner_tensors(blocks: Blocks) -> float:
    """Inner tensors that the feed-forward part keeps: half of SwiGLU's where there is no gate."""
    tensors = blocks.calibration.memory.inner_tensors
    return tensors if blocks.software.feed_forward == "swiglu" else tensors / 2


def _kept(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...]) -> float:
    """Activations of the micro-batches in flight."""
    across = job.layout.tensor if job.layout.sequence_parallel else 1
    block, entry = block_bytes(blocks, job), 2.0 * job.tokens * blocks.shape(job).hidden / across
    return sum(count * (stage.recomputed * entry + (stage.layers - stage.recomputed) * block) for stage, count in held)


def _holes(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...], kept: float) -> float:
    """What lies idle between tensors where tensor ranks gather whole ones, which come and go among those that stay."""
    layout, numbers = job.layout, blocks.calibration.memory
    if layout.tensor == 1:
        return 0.0
    others = min(sum(count for _, count in held), MOST_IN_FLIGHT) - 1
    each = numbers.flight_bytes * others
    if blocks.software.streamed_tensor and layout.pipeline == 1:
        each += numbers.stream_bytes * min(job.micro_batches, MOST_STREAMED)
    # Later micro-batches have to fit into what earlier ones leave.
    refilled = kept if job.micro_batches > layout.pipeline else 0.0
    return each * job.tokens * blocks.shape(job).hidden + numbers.refill * refilled


def _workspace(blocks: Blocks, job: Job) -> float:
    numbers, shape = blocks.calibration.memory, blocks.shape(job)
    widths = numbers.work_hidden * shape.hidden + numbers.work_inner * shape.inner / job.layout.tensor
    return job.tokens * widths + numbers.library_gib * GIB


def _logits(blocks: Blocks, job: Job) -> float:
    numbers, software, words = blocks.calibration.memory, blocks.software, blocks.shape(job).vocabulary
    if not software.gathered_logits:
        return numbers.logit_bytes * job.tokens * words / job.layout.tensor
    each = numbers.logit_bytes + (numbers.gathered_logit_bytes if job.layout.tensor > 1 else 0.0)
    return each * job.tokens * words
