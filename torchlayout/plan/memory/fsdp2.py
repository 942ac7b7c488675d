"""Peak memory of each rank of our own stack, from an account of its tensors: FSDP2 with masters in fp32 or wider.

How exact it is `benchmarks/plan_memory.py` shows, against real steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchlayout.plan.memory.fsdp2_groups import Held, held_by_rank, held_by_ranks
from torchlayout.plan.memory.fsdp2_moments import moments
from torchlayout.plan.memory.fsdp2_phases import Phases, Use
from torchlayout.plan.memory.peak import Memory, base_bytes

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.time.block import Blocks


def own_memories(blocks: Blocks, job: Job) -> tuple[Memory, ...]:
    """The peak of each pipeline rank."""
    phases = Phases(blocks, job)
    return tuple(_memory(phases, held, _fullest(phases, held)) for held in held_by_rank(blocks, job))


def worst_own_memory(blocks: Blocks, job: Job) -> Memory:
    """The peak of the rank that needs most; ranks with equal stages are looked at as if they were one."""
    phases = Phases(blocks, job)
    found = [(held, _fullest(phases, held)) for held in held_by_ranks(blocks, job)]
    return _memory(phases, *max(found, key=lambda pair: _static(phases, pair[0]) + _bytes(pair[1])))


def own_fits(blocks: Blocks, job: Job, budget: float) -> bool:
    """Whether no rank needs more bytes than the budget; looks no further than at the first that does."""
    phases = Phases(blocks, job)
    left = (budget - base_bytes(blocks, job)) / blocks.calibration.memory.fragmentation
    return all(
        (static := _static(phases, held)) <= left and static + _bytes(_fullest(phases, held)) <= left
        for held in held_by_ranks(blocks, job)
    )


def _fullest(phases: Phases, held: Held) -> Use:
    """What ranks need besides parameters and optimizer states where they need most."""
    job = phases.job
    when = moments(job.layout, job.micro_batches, held.ranks, held.numbers, held.recomputes)
    return max(phases.of(held, when), key=_bytes)


def _memory(phases: Phases, held: Held, worst: Use) -> Memory:
    blocks, static = phases.blocks, _static(phases, held)
    masters = phases.groups.masters(held)
    return Memory(
        masters,
        worst.gradients,
        static - masters,
        worst.gathered,
        worst.activations,
        worst.recomputed,
        worst.logits,
        worst.workspace,
        worst.buffers,
        fragmentation=(blocks.calibration.memory.fragmentation - 1) * (static + _bytes(worst)),
        base=base_bytes(blocks, phases.job),
        phase=worst.phase,
    )


def _static(phases: Phases, held: Held) -> float:
    """Masters and AdamW's states."""
    return 3 * phases.groups.masters(held) + phases.groups.counters(held)


def _bytes(use: Use) -> float:
    return sum(use[1:])
