"""Peak memory of each rank of our own stack, from an account of its tensors: FSDP2 with masters in fp32 or wider.

How exact it is `benchmarks/plan_memory.py` shows, against real steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchlayout.plan.fsdp2_groups import Part, parts_of
from torchlayout.plan.fsdp2_moments import moments
from torchlayout.plan.fsdp2_phases import Phases, Use
from torchlayout.plan.memory import Memory, base_bytes

if TYPE_CHECKING:
    from torchlayout.plan.block import Blocks
    from torchlayout.plan.job import Job


def own_memories(blocks: Blocks, job: Job) -> tuple[Memory, ...]:
    """The peak of each pipeline rank."""
    phases = Phases(blocks, job)
    return tuple(_memory(phases, (rank,), parts) for rank, parts in enumerate(_ranks(blocks, job)))


def worst_own_memory(blocks: Blocks, job: Job) -> Memory:
    """The peak of the rank that needs most: of ranks with equal stages all moments are looked at as if of one."""
    phases = Phases(blocks, job)
    alike: dict[tuple[Part, ...], list[int]] = {}
    for rank, parts in enumerate(_ranks(blocks, job)):
        alike.setdefault(parts, []).append(rank)
    memories = (_memory(phases, tuple(ranks), parts) for parts, ranks in alike.items())
    return max(memories, key=lambda memory: memory.bytes)


def own_memory(blocks: Blocks, job: Job, rank: int) -> Memory:
    """The peak of one pipeline rank."""
    return _memory(Phases(blocks, job), (rank,), _ranks(blocks, job)[rank])


def _ranks(blocks: Blocks, job: Job) -> tuple[tuple[Part, ...], ...]:
    """The stages of each pipeline rank."""
    parts, layout = parts_of(blocks, job), job.layout
    return tuple(tuple(parts[stage] for stage in layout.stages_of(rank)) for rank in range(layout.pipeline))


def _memory(phases: Phases, ranks: tuple[int, ...], parts: tuple[Part, ...]) -> Memory:
    """The peak of ranks with these stages, over the moments at which one of them can be fullest."""
    blocks, job, groups = phases.blocks, phases.job, phases.groups
    kinds = tuple(dict.fromkeys(parts))
    recomputes = any(part.recomputed for part in kinds)
    when = moments(job.layout, job.micro_batches, ranks, tuple(map(kinds.index, parts)), recomputes)
    worst = max(phases.of(parts, kinds, when), key=_bytes)
    masters = groups.wide * groups.owned(parts) / groups.shards
    optimizer = 2 * masters + groups.counters(parts)
    inside = masters + optimizer + _bytes(worst)
    return Memory(
        masters,
        worst.gradients,
        optimizer,
        worst.gathered,
        worst.activations,
        worst.recomputed,
        worst.logits,
        worst.workspace,
        worst.buffers,
        fragmentation=(blocks.calibration.memory.fragmentation - 1) * inside,
        base=base_bytes(blocks, job),
        phase=worst.phase,
    )


def _bytes(use: Use) -> float:
    return sum(use[1:])
