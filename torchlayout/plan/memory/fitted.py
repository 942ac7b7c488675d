"""Memory of a rank in a stack that is known by its description: formulas with fitted coefficients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchlayout.plan.memory.peak import Memory, base_bytes
from torchlayout.plan.time.sharding import owned
from torchlayout.plan.time.stages import Stage

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.time.block import Blocks


def fitted_memory(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...]) -> Memory:
    """The peak of a rank with these stages, each with the micro-batches it holds."""
    numbers = blocks.calibration.memory
    states = _states(blocks, job, held)
    gathered = _gathered(blocks, job, held)
    kept, buffers = _kept(blocks, job, held)
    block = block_bytes(blocks, job) if any(stage.recomputed for stage, _ in held) else 0.0
    work = _workspace(blocks, job)
    logits = _logits(blocks, job) if any(stage.last for stage, _ in held) else 0.0
    # A block's backward and the loss come one after the other; the allocator reuses most of the larger for the smaller.
    if block >= logits:
        logits *= numbers.reuse
    else:
        block *= numbers.reuse
    inside = sum(states) + gathered + kept + block + logits + work + buffers
    return Memory(
        *states,
        gathered=gathered,
        activations=kept,
        recomputed=block,
        logits=logits,
        workspace=work,
        buffers=buffers,
        fragmentation=(numbers.fragmentation - 1) * inside,
        base=base_bytes(blocks, job),
    )


def _states(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...]) -> tuple[float, float, float]:
    """Parameters, gradients and optimizer states, by what the stack shards."""
    layout, software = job.layout, blocks.software
    whole = sum(owned(blocks, job, stage) for stage, _ in held)
    ranks = layout.shard * layout.context
    if software.fully_sharded and ranks > 1:
        wide = software.parameter_bytes * whole if layout.zero == 1 else 0.0
        return wide, software.gradient_bytes * whole / ranks, software.optimizer_bytes * whole / ranks
    each = software.parameter_bytes + (software.zero1_bytes if layout.zero == 1 and layout.shard > 1 else 0)
    wider = software.accumulation_bytes * whole
    return each * whole, software.gradient_bytes * whole + wider, software.optimizer_bytes * whole / ranks


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


def _kept(blocks: Blocks, job: Job, held: tuple[tuple[Stage, int], ...]) -> tuple[float, float]:
    """Activations of the micro-batches in flight, and what stages keep at their boundaries."""
    layout, numbers, shape, tokens = job.layout, blocks.calibration.memory, blocks.shape(job), job.tokens
    across = layout.tensor if layout.sequence_parallel else 1
    block, entry = block_bytes(blocks, job), 2.0 * tokens * shape.hidden / across
    kept = buffers = 0.0
    for stage, count in held:
        kept += count * (stage.recomputed * entry + (stage.layers - stage.recomputed) * block)
        buffers += (count + 1) * numbers.boundary_bytes * tokens * shape.hidden
    return kept, buffers if layout.pipeline > 1 else 0.0


def _workspace(blocks: Blocks, job: Job) -> float:
    numbers, shape = blocks.calibration.memory, blocks.shape(job)
    return job.tokens * (numbers.work_hidden * shape.hidden + numbers.work_inner * shape.inner / job.layout.tensor)


def _logits(blocks: Blocks, job: Job) -> float:
    numbers, software, words = blocks.calibration.memory, blocks.software, blocks.shape(job).vocabulary
    if not software.gathered_logits:
        return numbers.logit_bytes * job.tokens * words / job.layout.tensor
    each = numbers.logit_bytes + (numbers.gathered_logit_bytes if job.layout.tensor > 1 else 0.0)
    return each * job.tokens * words
