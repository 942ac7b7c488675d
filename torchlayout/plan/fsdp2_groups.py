"""What FSDP2 gathers, shards and reduces on a rank of our own stack: in groups, which are the embedding, each block and
the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchlayout.layout.words import V_SCHEDULES
from torchlayout.plan.job import WIDTH
from torchlayout.plan.stages import stages

if TYPE_CHECKING:
    from torchlayout.plan.block import Blocks
    from torchlayout.plan.job import Job

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


def parts_of(blocks: Blocks, job: Job) -> tuple[Part, ...]:
    """The stages of a job, in order."""
    layout, start, found = job.layout, 0, []
    turn = layout.pipeline if layout.schedule in V_SCHEDULES else 0
    every = layout.recompute_every
    for number, stage in enumerate(stages(blocks, job)):
        whole = range(-start % every, stage.layers, every) if every else range(0)
        turns = turn > 0 and number == turn, number == turn - 1
        found.append(Part(stage.layers, whole, stage.first, stage.last, *turns))
        start += stage.layers
    return tuple(found)


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

    def owned(self, parts: tuple[Part, ...]) -> float:
        """Parameters of a rank before they are sharded."""
        return sum(map(self.part, parts))

    def counters(self, parts: tuple[Part, ...]) -> int:
        """Bytes of AdamW's counters."""
        tensors = sum(TENSORS * part.layers + (part.first and not self.tied) + 2 * part.last for part in parts)
        return COUNTER_BYTES * tensors
