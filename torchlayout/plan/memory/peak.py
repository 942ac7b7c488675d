"""Peak memory of each pipeline rank, by item and by phase; never averaged over stages.

Two accounts: of our own stack tensor by tensor, which is exact (fsdp2.py), and of other stacks by formulas whose
coefficients a calibration fits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from torchlayout.plan.memory.flight import Held, in_flight
from torchlayout.plan.time.stages import Stage, stages

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.time.block import Blocks

GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank at its peak, by item; `bytes` is their sum."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    gathered: float = 0.0
    activations: float = 0.0
    recomputed: float = 0.0
    logits: float = 0.0
    workspace: float = 0.0
    buffers: float = 0.0
    fragmentation: float = 0.0
    base: float = 0.0
    phase: str = "backward"
    """What the rank does when it needs most."""
    spare: float = 0.0
    """What the allocator reserves besides while there is room, and gives back before it fails; not in `bytes`."""

    @property
    def bytes(self) -> float:
        """The whole."""
        return float(sum(getattr(self, name) for name in ITEMS))


ITEMS = tuple(field.name for field in fields(Memory) if field.name not in ("phase", "spare"))
"""The items of a rank's memory."""


def rank_memories(blocks: Blocks, job: Job) -> tuple[Memory, ...]:
    """The peak of each pipeline rank."""
    if blocks.software.account == "exact":
        from torchlayout.plan.memory.fsdp2 import own_memories

        return own_memories(blocks, job)
    account = _Account(blocks, job)
    return tuple(account.of(held) for held in in_flight(job))


def worst_memory(blocks: Blocks, job: Job) -> Memory:
    """The peak of the rank that needs most; of ranks with equal stages only the fullest is looked at."""
    if blocks.software.account == "exact":
        from torchlayout.plan.memory.fsdp2 import worst_own_memory

        return worst_own_memory(blocks, job)
    account = _Account(blocks, job)
    fullest: dict[tuple[Stage, ...], Held] = {}
    for held in in_flight(job):
        kinds = tuple(account.stages[stage] for stage, _ in held)
        if kinds not in fullest or sum(n for _, n in held) > sum(n for _, n in fullest[kinds]):
            fullest[kinds] = held
    return max((account.of(held) for held in fullest.values()), key=lambda memory: memory.bytes)


def fits(blocks: Blocks, job: Job, budget: float) -> bool:
    """Whether the rank that needs most needs no more bytes than the budget."""
    if blocks.software.account == "exact":
        from torchlayout.plan.memory.fsdp2 import own_fits

        return own_fits(blocks, job, budget)
    return worst_memory(blocks, job).bytes <= budget


def base_bytes(blocks: Blocks, job: Job) -> float:
    """What the context, libraries and communication take whatever is computed."""
    numbers, layout = blocks.calibration.memory, job.layout
    gib = numbers.base_gib
    gib += numbers.tensor_gib * (layout.tensor > 1) + numbers.pipeline_gib * (layout.pipeline > 1)
    gib += numbers.data_gib * (layout.data_ranks > 1)
    return gib * GIB


class _Account:
    """The ranks of one job; equal ones are counted once."""

    def __init__(self, blocks: Blocks, job: Job) -> None:
        self.blocks, self.job = blocks, job
        self.stages = stages(blocks, job)
        self._known: dict[tuple[tuple[Stage, int], ...], Memory] = {}

    def of(self, held: Held) -> Memory:
        from torchlayout.plan.memory.fitted import fitted_memory

        key = tuple((self.stages[stage], count) for stage, count in held)
        if key not in self._known:
            self._known[key] = fitted_memory(self.blocks, self.job, key)
        return self._known[key]
