"""At which moments of a step a pipeline rank can be fullest, from the schedule itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from torchlayout.layout import Layout
from torchlayout.plan.memory.flight import representative
from torchlayout.schedule import Action, actions

Kinds = tuple[int, ...]
"""For each stage of a rank what kind it is; stages of a kind are alike in all that decides on their memory."""


class Moment(NamedTuple):
    """While a rank does something for one of its stages; each tuple has a figure for each kind of them."""

    action: str
    """F, the forward of the model's last stage, whose loss needs room; B, a full backward; I and W, its halves."""
    kind: int
    held: tuple[int, ...]
    """Micro-batches whose activations are there, this one included."""
    halved: tuple[int, ...]
    """Of them those between the halves of a split backward: with a first half's own, without a second's."""
    begun: tuple[int, ...]
    """Stages of which a micro-batch has gone backward, so that they have gradients."""
    finished: tuple[int, ...]
    """Micro-batches whose backward is done; their output has been sent long since."""
    returned: tuple[int, ...]
    """Of them those that a full backward sent an input's gradient of."""


def moments(
    layout: Layout, micro_batches: int, ranks: tuple[int, ...], kinds: Kinds, second_halves: bool
) -> tuple[Moment, ...]:
    """The moments of some pipeline ranks with stages of the same kinds; of those of the same work none has less of
    everything.

    second_halves: whether the second half of a split backward can need more than its first.
    """
    if layout.virtual_stages == 1:
        return _single(layout.schedule, layout.pipeline, micro_batches, ranks)
    return _several(layout.schedule, layout.pipeline, layout.virtual_stages, micro_batches, ranks, kinds, second_halves)


@lru_cache(maxsize=4096)
def _single(schedule: str, pipeline: int, micro_batches: int, ranks: tuple[int, ...]) -> tuple[Moment, ...]:
    """One stage a rank: GPipe, 1F1B and, of one rank, no pipeline at all. The first of the ranks is the fullest."""
    held = micro_batches if schedule == "gpipe" else min(pipeline - ranks[0], micro_batches)
    now = [(held, min(1, micro_batches - held))]
    if held == micro_batches > 1:
        # The first backward has the most activations, the second as many less one, and the first one's gradients.
        now.append((held - 1, 1))
    # What has been sent is let go of when the next is.
    found = [Moment("B", 0, (held,), (0,), (past,), (past,), (past,)) for held, past in now]
    if pipeline - 1 in ranks:
        found.append(found[0]._replace(action="F"))
    return tuple(found)


@lru_cache(maxsize=16384)
def _several(
    schedule: str,
    pipeline: int,
    virtual: int,
    micro_batches: int,
    ranks: tuple[int, ...],
    kinds: Kinds,
    second_halves: bool,
) -> tuple[Moment, ...]:
    """Several stages a rank: the schedule is played, with as few micro-batches as show all of it."""
    layout = Layout(pipeline=pipeline, schedule=schedule, virtual_stages=virtual)
    few = representative(layout, micro_batches)
    orders = _orders(schedule, pipeline, virtual, few)
    found: dict[tuple[object, ...], list[Moment]] = {}
    for rank in ranks:
        for moment in _walked(orders[rank], layout.stages_of(rank), layout.stages - 1, kinds):
            if moment.action != "W" or second_halves:
                _keep(found.setdefault(moment[:2], []), moment)
    return tuple(_later(moment, micro_batches - few) for alike in found.values() for moment in alike)


@lru_cache(maxsize=256)
def _orders(schedule: str, pipeline: int, virtual: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    return tuple(actions(Layout(pipeline=pipeline, schedule=schedule, virtual_stages=virtual), micro_batches))


def _walked(order: tuple[Action, ...], stages: tuple[int, ...], last: int, kinds: Kinds) -> Iterator[Moment]:
    """Every moment of a rank that can be among its fullest."""
    held, halved, begun, finished, returned = ([0] * (max(kinds) + 1) for _ in range(5))
    gone = set()
    for action, stage, _ in order:
        if stage == 0 and action in "IW":
            # The first stage has no input to give a gradient to: torch does all in the second half.
            if action == "I":
                continue
            action = "B"
        kind = kinds[stages.index(stage)]
        held[kind] += action == "F"
        halved[kind] += (action == "I") - (action == "W")
        if action != "F" or stage == last:
            yield Moment(action, kind, *map(tuple, (held, halved, begun, finished, returned)))
        if action in "BW":
            held[kind] -= 1
            begun[kind] += stage not in gone
            gone.add(stage)
            finished[kind] += 1
            returned[kind] += action == "B"


def _keep(alike: list[Moment], moment: Moment) -> None:
    """Add a moment to those of the same work, unless one of them has more activations and as many gradients.

    Of those that repeat in a steady state the last stays, since what has been sent only grows.
    """
    if any(_covers(other, moment) and not _covers(moment, other) for other in alike):
        return
    alike[:] = [other for other in alike if not _covers(moment, other)]
    alike.append(moment)


def _covers(more: Moment, less: Moment) -> bool:
    pairs = zip(more.held + more.halved + more.begun, less.held + less.halved + less.begun, strict=True)
    return all(many >= few for many, few in pairs)


def _later(moment: Moment, more: int) -> Moment:
    """The same moment of a step with more micro-batches, at the end of the steady state where there is one."""
    return moment._replace(
        finished=tuple(count + more * begun for count, begun in zip(moment.finished, moment.begun, strict=True)),
        returned=tuple(
            count + more * begun if count else 0 for count, begun in zip(moment.returned, moment.begun, strict=True)
        ),
    )
