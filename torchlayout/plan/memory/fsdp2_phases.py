"""What a rank of our own stack needs besides parameters and optimizer states, in each phase of a step that can be the
fullest: the loss, its backward, a block's backward at its high points, reduction, the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from torchlayout.layout.words import SINGLE_STAGE_SCHEDULES
from torchlayout.plan.memory.fsdp2_groups import TENSORS, Groups, Held, Part
from torchlayout.plan.memory.fsdp2_kept import kept
from torchlayout.plan.memory.fsdp2_moments import Moment
from torchlayout.plan.memory.fsdp2_sharded import Accumulating, Beside, Reducing, Sharding

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.time.block import Blocks

BATCH_BYTES = 24
"""Tokens, labels and positions of a step, bytes a token."""
ADAM_COPIES = 2
"""Of the largest parameter, without a fused kernel: the denominator, and the step over it."""


class Use(NamedTuple):
    """Bytes of a rank in a phase; parameters and optimizer states, which are always there, are not among them."""

    phase: str
    gradients: float = 0.0
    gathered: float = 0.0
    activations: float = 0.0
    recomputed: float = 0.0
    logits: float = 0.0
    workspace: float = 0.0
    buffers: float = 0.0


class Load(NamedTuple):
    """Bytes that a micro-batch adds to a stage, by how far it is."""

    held: float
    """Activations from its forward to its backward."""
    halved: float
    """Gradients between the halves of a split backward; that of the input has been sent."""
    finished: float
    """The output, which has been sent, after its backward."""
    returned: float
    """The input's gradient that a full backward has sent."""
    left: float
    """The one that the first half of a backward leaves at the receive buffer, to the end of the step."""
    gradients: float
    """The stage's own, once one micro-batch has gone backward."""


class Phases:
    """The phases of a job's ranks."""

    def __init__(self, blocks: Blocks, job: Job) -> None:
        layout, shape = job.layout, blocks.shape(job)
        self.blocks, self.job = blocks, job
        self.groups, self.kept = Groups.of(blocks, job), kept(blocks, job)
        self.cpu = blocks.software.device == "cpu"
        # What has been sent is held until the next is sent, where torch waits for that; with several stages a rank it
        # waits at the end of a step, and gloo holds all. NCCL lets go of what has arrived.
        self.sent = self.kept.entry if self.cpu or layout.schedule in SINGLE_STAGE_SCHEDULES else 0.0
        self.seen = job.micro_batches > 1
        # With one micro-batch zero1 does as zero2 does.
        self.accumulates = layout.pipeline > 1 or (layout.zero == 1 and self.seen)
        # Whether no forward comes after the first backward.
        self.drained = layout.schedule in ("gpipe", "looped")
        self.batch = BATCH_BYTES * job.batch / layout.data_ranks * job.sequence / layout.context
        self.received = job.micro_batches * self.kept.entry
        self.matrix = shape.inner * shape.hidden / layout.tensor
        self._loads: dict[Part, Load] = {}

    def of(self, held: Held, when: tuple[Moment, ...]) -> Iterator[Use]:
        """The phases of a rank at these moments and when a step ends."""
        # Receive buffers of all micro-batches of a step, which torch's stages hold for good; at the turn of a V what
        # passes there is held as long.
        boundaries = sum((not part.first) + (not part.last) for part in held.parts)
        buffers = self.batch + boundaries * self.received
        owned, kinds = self.groups.owned(held), held.kinds
        for moment, activations, sent in self._fullest(kinds, when):
            yield from self._at(owned, kinds, moment, activations, buffers + sent)
        yield from self._end(owned, kinds, buffers)

    def _fullest(self, kinds: tuple[Part, ...], when: tuple[Moment, ...]) -> Iterator[tuple[Moment, float, float]]:
        """For each kind of work in each kind of stage the moment with the most: (it, activations, what is sent)."""
        loads = [self._load(part) for part in kinds]
        found: dict[tuple[str, int], tuple[float, Moment, float, float]] = {}
        for moment in when:
            activations = sent = gradients = 0.0
            for load, held, halved, begun, finished, returned in zip(loads, *moment[2:], strict=True):
                activations += held * load.held + halved * load.halved
                sent += finished * load.finished + returned * load.returned
                sent += (halved + finished - returned) * load.left
                gradients += begun * load.gradients
            total = activations + sent + gradients
            if moment[:2] not in found or total > found[moment[:2]][0]:
                found[moment[:2]] = (total, moment, activations, sent)
        return (most[1:] for most in found.values())

    def _load(self, part: Part) -> Load:
        if part not in self._loads:
            kept, whole = self.kept, len(part.recomputed)
            held = (part.layers - whole) * kept.block + whole * kept.entry + kept.tables
            if not part.first and (kept.shared or 0 in part.recomputed):
                held -= kept.entry  # it is the receive buffer
            if part.last:
                held += kept.head + kept.loss
            elif not part.to_here:
                held += kept.entry
            self._loads[part] = Load(
                held,
                halved=part.layers * kept.halved + (part.layers - 1 + 2 * part.last) * kept.entry,
                finished=0.0 if part.last or part.to_here else self.sent,
                returned=0.0 if part.first or part.from_here else self.sent,
                left=0.0 if part.first or part.from_here else kept.entry,
                gradients=self.groups.part(part) * self.groups.reduced,
            )
        return self._loads[part]

    def _at(
        self, owned: float, kinds: tuple[Part, ...], moment: Moment, activations: float, buffers: float
    ) -> Iterator[Use]:
        part = kinds[moment.kind]
        if self.accumulates:
            sharding: Sharding = Accumulating(self.groups, owned, kinds, moment, self.drained)
        else:
            sharding = Reducing(self.groups, part, self.seen)
        if moment.action == "F":
            yield self._loss(sharding, activations, buffers)
            return
        if moment.action == "W":
            if part.recomputed:
                yield self._second_half(sharding, part, activations, buffers)
            return
        if moment.action == "I":
            yield self._first_half(sharding, part, activations, buffers)
            activations -= self._load(part).halved
        if part.last:
            yield self._loss_backward(sharding, activations, buffers)
            activations -= self.kept.head + self.kept.loss
        if moment.action == "B":
            yield from self._blocks(sharding, part, activations, buffers)

    def _loss(self, sharding: Sharding, activations: float, buffers: float) -> Use:
        beside, kept = sharding.in_loss(), self.kept
        there = activations - kept.loss
        return _use("loss", beside, there, buffers, logits=kept.loss_forward, workspace=kept.loss_input)

    def _loss_backward(self, sharding: Sharding, activations: float, buffers: float) -> Use:
        beside, kept = sharding.in_loss_backward(), self.kept
        beside = beside._replace(gradients=beside.gradients + kept.loss_gradient)
        work, logits = kept.loss_hidden, kept.loss_backward
        return _use("backward: loss", beside, activations, buffers, logits=logits, workspace=work)

    def _first_half(self, sharding: Sharding, part: Part, activations: float, buffers: float) -> Use:
        """Its end has the most, in the norm of the stage's first block; the input's gradient is not there yet."""
        kept = self.kept
        beside = sharding.in_block(part, part.layers - 1, 0.0)
        work = max(0.0, kept.norm_work - 2 * kept.entry)
        return _use("backward: norm", beside, activations, buffers, workspace=work)

    def _second_half(self, sharding: Sharding, part: Part, activations: float, buffers: float) -> Use:
        """torch recomputes a block again for each of its weights, and holds it each time until the last one is done;
        the product in the feed-forward part of only one block."""
        kept, blocks = self.kept, len(part.recomputed)
        again = TENSORS * (blocks * kept.weights - (blocks - 1) * kept.inner)
        beside = sharding.in_block(part, part.layers - 1, self.matrix)
        return _use("backward: weights", beside, activations, buffers, recomputed=again)

    def _blocks(self, sharding: Sharding, part: Part, activations: float, buffers: float) -> Iterator[Use]:
        """Backward of the blocks that can be the fullest; `activations` is without the head's."""
        kept = self.kept
        for passed in _turning_points(part, self.groups, sharding.grows):
            number = part.layers - 1 - passed
            whole = number in part.recomputed
            later = part.recomputed_after(number)
            there = activations - later * kept.entry - (passed - later) * kept.block
            # Of the last block of a stage the gradient comes in a receive buffer.
            gradient = kept.entry if passed or part.last else 0.0
            for high in kept.recomputed_highs if whole else kept.highs:
                beside, work = sharding.in_block(part, passed, high.parameters), high.work + gradient
                used = there - high.gone
                yield _use(high.phase, beside, used, buffers, recomputed=high.again, workspace=work)
            if isinstance(sharding, Reducing):
                there -= kept.entry if whole else kept.block
                yield _use("reduction", sharding.reducing_block(passed), there, buffers, workspace=kept.entry)

    def _end(self, owned: float, kinds: tuple[Part, ...], buffers: float) -> Iterator[Use]:
        """The end of a step's last backward, and the optimizer's step."""
        groups = self.groups
        if self.accumulates:
            # Group by group; what is whole is there until its turn comes.
            largest = max(groups.block, groups.head if kinds[-1].last else 0.0)
            reduction = buffers + largest * groups.reduced * (1 + 1 / groups.shards)
            yield Use("reduction", owned * groups.reduced, owned * groups.compute, buffers=reduction)
        else:
            yield _use("reduction", Reducing(groups, kinds[0], self.seen).reducing_embedding(), 0.0, buffers)
        work = 0.0
        if self.cpu:
            ends = groups.embedding if any(part.first or part.last for part in kinds) else 0.0
            work = ADAM_COPIES * max(ends, self.matrix) * groups.wide / groups.shards
        yield Use("optimizer", owned * groups.wide / groups.shards, workspace=work, buffers=buffers)


def _use(
    phase: str,
    beside: Beside,
    activations: float,
    buffers: float,
    recomputed: float = 0.0,
    logits: float = 0.0,
    workspace: float = 0.0,
) -> Use:
    gradients, gathered, more = beside
    return Use(phase, gradients, gathered, activations, recomputed, logits, workspace, buffers + more)


def _turning_points(part: Part, groups: Groups, grows: bool) -> set[int]:
    """How many blocks have been passed at those that can be the fullest. Between them all grows or falls evenly, and
    unless something grows all that falls is most at the beginning."""
    last, found = part.layers - 1, {0}
    if groups.block > groups.head and last:
        found.add(1)  # the first one behind whose reduction a block's is
    if grows:
        found.add(last)
    if part.recomputed:
        found.add(last - part.recomputed[-1])
    return found
