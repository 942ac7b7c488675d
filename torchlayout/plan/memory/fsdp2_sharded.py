"""What FSDP2 holds beside the shards while a rank of our own stack computes: gathered parameters, flat buffers, whole
gradients, and the buffers of reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torchlayout.plan.memory.fsdp2_groups import Groups, Part
    from torchlayout.plan.memory.fsdp2_moments import Moment


class Beside(NamedTuple):
    """Bytes beside the shards."""

    gradients: float
    gathered: float
    buffers: float


class Sharding(Protocol):
    """How FSDP2 goes through a step; each method says what there is at one point of a micro-batch."""

    grows: bool
    """Whether anything grows as backward passes the blocks."""

    def in_loss(self) -> Beside:
        """In the forward of the loss."""

    def in_loss_backward(self) -> Beside:
        """In its backward, without the head's own gradient."""

    def in_block(self, part: Part, passed: int, parameters: float) -> Beside:
        """In the backward of a block of a stage, `passed` blocks from its end, with so many gradients of its own."""


class Reducing:
    """Gradients are reduced in the backward of each micro-batch, group by group: zero3 and zero2 without a pipeline.

    zero3 frees a group's gathered copy after its forward and its backward; zero2 keeps all from forward to backward.
    Whoever gathers fills a flat buffer first. Forward holds that of the last group until the next is copied out of;
    backward has the next one's already filled. The input of a reduction is held until the next one.
    """

    def __init__(self, groups: Groups, part: Part, seen: bool) -> None:
        self.groups, self.part, self.seen = groups, part, seen
        self.whole = groups.part(part)
        self.grows = groups.replicated or not seen

    def in_loss(self) -> Beside:
        groups = self.groups
        # A tied head is the root's, which has been gathered first; the last to be gathered then is a block.
        flat = (groups.block if groups.tied else groups.head) * groups.flat
        copies = groups.head if groups.zero == 3 else self.whole
        return Beside(self._gradients(0.0), (copies + flat) * groups.compute, 0.0)

    def in_loss_backward(self) -> Beside:
        groups = self.groups
        copies = groups.head + groups.block * groups.flat if groups.zero == 3 else self.whole
        return Beside(self._gradients(0.0), copies * groups.compute, 0.0)

    def in_block(self, part: Part, passed: int, parameters: float) -> Beside:
        groups, reduced = self.groups, self._reduced(passed)
        gathered = self._next(passed) + groups.block + self._root
        if groups.zero != 3:
            gathered = self.whole - reduced
        held = groups.block if passed else groups.head * (not groups.tied)
        own = (parameters + self._root) * groups.compute
        buffers = held * groups.reduced + self._all_reduced(reduced)
        return Beside(self._gradients(reduced) + own, gathered * groups.compute, buffers)

    def reducing_block(self, passed: int) -> Beside:
        """When a block's gradients have just been reduced; its gathered copy is gone."""
        groups, reduced = self.groups, self._reduced(passed)
        gathered = self._next(passed) + self._root if groups.zero == 3 else self.whole - reduced - groups.block
        own = (groups.block + self._root) * groups.compute
        return Beside(
            self._gradients(reduced) + own,
            gathered * groups.compute,
            self._reduction(groups.block) + self._all_reduced(reduced),
        )

    def reducing_embedding(self) -> Beside:
        """The same of the embedding, at the end of a backward, or of the root of a tied one."""
        groups = self.groups
        first = groups.head if groups.tied else groups.embedding
        reduced = self.whole - first
        own = (groups.whole_embedding + (first if groups.tied else 0.0)) * groups.compute
        return Beside(self._gradients(reduced) + own, 0.0, self._reduction(first) + self._all_reduced(reduced))

    @property
    def _root(self) -> float:
        """A tied head's weight stays gathered to the end of a backward, and its gradient whole."""
        return self.groups.head if self.groups.tied else 0.0

    def _reduced(self, passed: int) -> float:
        return passed * self.groups.block + (0.0 if self.groups.tied else self.groups.head)

    def _next(self, passed: int) -> float:
        """The flat buffer of the group whose backward comes next."""
        groups = self.groups
        following = groups.block if passed < self.part.layers - 1 else groups.first
        return following * groups.flat

    def _gradients(self, reduced: float) -> float:
        """Sharded gradients: all of them from the second micro-batch on."""
        return (self.whole if self.seen else reduced) * self.groups.wide / self.groups.shards

    def _all_reduced(self, reduced: float) -> float:
        """FSDP2 holds the input of each group's all-reduce to the end of a backward (`_all_reduce_state`). In the first
        one that is the gradient itself, unless the optimizer's format differs."""
        groups = self.groups
        if not groups.replicated or (not self.seen and groups.reduced == groups.wide):
            return 0.0
        return reduced * groups.reduced / groups.shards

    def _reduction(self, group: float) -> float:
        return group * self.groups.reduced * (1 + 1 / self.groups.shards)


class Accumulating:
    """Gradients stay whole until a step's last micro-batch has gone backward: under a pipeline, and with zero1.

    Gathered parameters stay as well, but under zero3: forward frees each group again, and backward gathers it.
    """

    def __init__(self, groups: Groups, owned: float, kinds: tuple[Part, ...], moment: Moment, drained: bool) -> None:
        """owned: parameters of the rank; drained: whether no forward follows."""
        self.groups, self.owned, self.begun = groups, owned, moment.begun[moment.kind] > 0
        begun = sum(count * groups.part(part) for part, count in zip(kinds, moment.begun, strict=True) if count)
        self.gradients = begun * groups.reduced
        if any(count and part.first for part, count in zip(kinds, moment.begun, strict=True)):
            # Adding up in another format leaves the rows of other ranks behind.
            rest = groups.whole_embedding - groups.embedding
            self.gradients += rest * groups.compute if groups.compute == groups.reduced else 0.0
        # Under zero3 a stage that has gone backward keeps what it gathered, until its next forward.
        self.all = groups.zero != 3 or (drained and self.begun)
        self.others = begun - (groups.part(kinds[moment.kind]) if self.begun else 0.0)
        self.grows = groups.zero == 3 or not self.begun

    def in_loss(self) -> Beside:
        groups = self.groups
        return self._beside(groups.head * (1 + groups.flat))

    def in_loss_backward(self) -> Beside:
        groups = self.groups
        return self._beside(groups.head + groups.block * groups.flat)

    def in_block(self, part: Part, passed: int, parameters: float) -> Beside:
        groups = self.groups
        before = groups.head * part.last + passed * groups.block
        following = groups.block if passed < part.layers - 1 else groups.first * part.first
        # New gradients of the reduced format are added to the old ones one by one, others when the block is through.
        fresh = parameters * groups.compute if not self.begun or groups.compute != groups.reduced else 0.0
        own = fresh if self.begun else fresh + before * groups.reduced
        return self._beside(before + groups.block + following * groups.flat, own)

    def _beside(self, gathered: float, own: float = 0.0) -> Beside:
        """gathered: what zero3 has, of the stage that runs."""
        copies = self.owned if self.all else min(self.owned, gathered + self.others)
        return Beside(self.gradients + own, copies * self.groups.compute, 0.0)
