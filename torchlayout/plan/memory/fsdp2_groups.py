"""What FSDP2 gathers, shards and reduces on a rank of our own stack: in groups, which are the embedding, each block and
the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchlayout.layout.words import V_SCHEDULES
from torchlayout.plan.job import WIDTH
from torchlayout.plan.time.stages import stages

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.time.block import Blocks

TENSORS = 9
"""Parameter tensors of a block: seven matrices and two norms."""
COUNTER_BYTES = 4
"""AdamW counts the steps of each tensor."""


class Part(NamedTuple):
    """A stage of the model as one rank holds it."""

    layers: int
    recomputed: range
    """Which of its blocks, from its first, are recomputed whole."""
    first: bool
    last: bool
    from_here: bool
    """Whether the stage before it is on the same rank, at the turn of a V; nothing is sent there."""
    to_here: bool
    """The same of the stage after it."""

    def recomputed_after(self, number: int) -> int:
        """How many of the blocks after a block are recomputed whole."""
        whole = self.recomputed
        return len(range(number + 1 + (whole.start - number - 1) % whole.step, whole.stop, whole.step))


class Held(NamedTuple):
    """What pipeline ranks that hold the same hold."""

    ranks: tuple[int, ...]
    parts: tuple[Part, ...]
    kinds: tuple[Part, ...]
    """The same, each once."""
    numbers: tuple[int, ...]
    """Of each part which of the kinds it is."""
    recomputes: bool
    """Whether any block is recomputed whole."""

    @classmethod
    def of(cls, ranks: tuple[int, ...], parts: tuple[Part, ...]) -> Held:
        """What ranks with these stages hold."""
        kinds = tuple(dict.fromkeys(parts))
        return cls(ranks, parts, kinds, tuple(map(kinds.index, parts)), any(part.recomputed for part in kinds))


def held_by_rank(blocks: Blocks, job: Job) -> tuple[Held, ...]:
    """What each pipeline rank holds."""
    return tuple(Held.of((rank,), parts) for rank, parts in enumerate(_ranks(blocks, job)))


def held_by_ranks(blocks: Blocks, job: Job) -> tuple[Held, ...]:
    """The same, of ranks that hold the same once."""
    layout = job.layout
    key = (
        id(job.model), job.sequence, layout.stages, layout.tensor, layout.recompute_every, layout.pipeline,
        layout.schedule in V_SCHEDULES,
    )  # fmt: skip

    def held() -> tuple[Held, ...]:
        alike: dict[tuple[Part, ...], list[int]] = {}
        for rank, parts in enumerate(_ranks(blocks, job)):
            alike.setdefault(parts, []).append(rank)
        return tuple(Held.of(tuple(ranks), parts) for parts, ranks in alike.items())

    return blocks.once("held", job, key, held)


def _ranks(blocks: Blocks, job: Job) -> tuple[tuple[Part, ...], ...]:
    """The stages of each pipeline rank."""
    layout, start, parts = job.layout, 0, []
    turn = layout.pipeline if layout.schedule in V_SCHEDULES else 0
    every = layout.recompute_every
    for number, stage in enumerate(stages(blocks, job)):
        whole = range(-start % every, stage.layers, every) if every else range(0)
        turns = turn > 0 and number == turn, number == turn - 1
        parts.append(Part(stage.layers, whole, stage.first, stage.last, *turns))
        start += stage.layers
    return tuple(tuple(parts[stage] for stage in layout.stages_of(rank)) for rank in range(layout.pipeline))


class Groups(NamedTuple):
    """Parameters of the groups on one tensor rank, and how they are sharded; widths in bytes of a number."""

    block: float
    embedding: float
    head: float
    whole_embedding: float
    """Under tensor parallelism torch makes the gradient of all of the embedding's rows on each rank, and keeps it
    behind the rank's own."""
    tied: bool
    shards: int
    """Ranks that parameters, gradients and optimizer states are sharded over: shard x context."""
    replicated: bool
    zero: int
    compute: int
    wide: int
    """Of the masters, of their gradients and of the optimizer's states."""
    reduced: int

    @classmethod
    def of(cls, blocks: Blocks, job: Job) -> Groups:
        """The groups of a job."""
        layout, shape = job.layout, blocks.shape(job)
        words = -(-shape.vocabulary // layout.tensor) * shape.hidden
        compute = WIDTH[job.precision]
        return cls(
            block=shape.matrices / layout.tensor + shape.norms,
            embedding=words,
            head=words + shape.hidden,
            whole_embedding=shape.embedding,
            # With both ends on one stage the root holds the one weight, and keeps it gathered.
            tied=shape.tied and layout.pipeline == 1,
            shards=layout.shard * layout.context,
            replicated=layout.replicate > 1,
            zero=layout.zero or 3,
            compute=compute,
            wide=max(4, compute),
            reduced=WIDTH[job.reduce],
        )

    @property
    def flat(self) -> bool:
        """Whether gathers go through a flat buffer: not where a rank has all."""
        return self.shards > 1

    @property
    def first(self) -> float:
        """The group before the first block: a tied embedding is in the head's."""
        return 0.0 if self.tied else self.embedding

    def part(self, part: Part) -> float:
        """Parameters of a stage."""
        return part.layers * self.block + (self.first if part.first else 0.0) + (self.head if part.last else 0.0)

    def owned(self, held: Held) -> float:
        """Parameters of a rank before they are sharded."""
        return sum(map(self.part, held.parts))

    def masters(self, held: Held) -> float:
        """Bytes of a rank's shards of the parameters; FSDP2 pads rows that do not divide, which is not counted."""
        return self.wide * self.owned(held) / self.shards

    def counters(self, held: Held) -> int:
        """Bytes of AdamW's counters."""
        parts = held.parts
        tensors = sum(TENSORS * part.layers + (part.first and not self.tied) + 2 * part.last for part in parts)
        return COUNTER_BYTES * tensors
