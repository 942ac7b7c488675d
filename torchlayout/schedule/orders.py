"""The order in which each pipeline rank works, in all seven schedules, as torch.distributed.pipelining has it.

A test holds every order against torch's own. Sources are named at each schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torchlayout.errors import InputError
from torchlayout.layout.rules import micro_batch_problem
from torchlayout.schedule.action import Action
from torchlayout.schedule.dualpipev import dualpipev
from torchlayout.schedule.zbv import zbv

if TYPE_CHECKING:
    from torchlayout.layout import Layout


def actions(layout: Layout, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    """The work of each pipeline rank in its order, one tuple for each rank.

    Raises InputError where the schedule cannot run so few, or this number of, micro-batches.
    """
    if problem := micro_batch_problem(layout, micro_batches):
        raise InputError(problem)
    order = _ORDERS[layout.schedule]
    return tuple(
        tuple(order(rank, layout.pipeline, layout.virtual_stages, micro_batches)) for rank in range(layout.pipeline)
    )


def _gpipe(rank: int, ranks: int, virtual: int, micro_batches: int) -> Iterator[Action]:
    """Fill, then drain (arXiv 1811.06965)."""
    yield from (Action("F", rank, m) for m in range(micro_batches))
    yield from (Action("B", rank, m) for m in range(micro_batches))


def _1f1b(rank: int, ranks: int, virtual: int, micro_batches: int) -> Iterator[Action]:
    """One forward, one backward, once the ranks after this one are busy (arXiv 2104.04473)."""
    ahead = min(ranks - 1 - rank, micro_batches)
    yield from (Action("F", rank, m) for m in range(ahead))
    for m in range(micro_batches - ahead):
        yield Action("F", rank, m + ahead)
        yield Action("B", rank, m)
    yield from (Action("B", rank, m) for m in range(micro_batches - ahead, micro_batches))


def _looped(rank: int, ranks: int, virtual: int, micro_batches: int) -> Iterator[Action]:
    """Breadth first: a stage takes every micro-batch before the next stage starts (arXiv 2211.05953)."""
    stages = range(rank, ranks * virtual, ranks)
    yield from (Action("F", stage, m) for stage in stages for m in range(micro_batches))
    # Torch runs the backwards from the last micro-batch to the first.
    for stage in reversed(stages):
        yield from (Action("B", stage, m) for m in reversed(range(micro_batches)))


def _interleaved(rank: int, ranks: int, virtual: int, micro_batches: int) -> Iterator[Action]:
    """Depth first in rounds of about as many micro-batches as ranks (arXiv 2104.04473, section 2.2)."""
    forward, backward = _rounds(rank, ranks, virtual, micro_batches)
    total = micro_batches * virtual
    ahead = _ahead(rank, ranks, virtual, micro_batches, hop=2)
    yield from (Action("F", *forward(n)) for n in range(ahead))
    for n in range(total - ahead):
        yield Action("F", *forward(n + ahead))
        yield Action("B", *backward(n))
    yield from (Action("B", *backward(n)) for n in range(total - ahead, total))


def _zerobubble(rank: int, ranks: int, virtual: int, micro_batches: int) -> Iterator[Action]:
    """Interleaved, half as far ahead; weight gradients trail by `rank` and fill the end (arXiv 2401.10241)."""
    forward, backward = _rounds(rank, ranks, virtual, micro_batches)
    total = micro_batches * virtual
    ahead = _ahead(rank, ranks, virtual, micro_batches, hop=1)
    yield from (Action("F", *forward(n)) for n in range(ahead))
    for n in range(total):
        if n + ahead < total:
            yield Action("F", *forward(n + ahead))
        yield Action("I", *backward(n))
        if n >= rank:
            yield Action("W", *backward(n - rank))
    yield from (Action("W", *backward(n)) for n in range(max(0, total - rank), total))


Place = Callable[[int], tuple[int, int]]


def _rounds(rank: int, ranks: int, virtual: int, micro_batches: int) -> tuple[Place, Place]:
    """(stage, micro-batch) of the n-th forward and of the n-th backward of a rank."""
    size = _round_size(ranks, micro_batches)

    def forward(n: int) -> tuple[int, int]:
        done, within = divmod(n, size * virtual)
        return within // size * ranks + rank, done * size + within % size

    def backward(n: int) -> tuple[int, int]:
        done, within = divmod(n, size * virtual)
        return (virtual - 1 - within // size) * ranks + rank, done * size + within % size

    return forward, backward


def _round_size(ranks: int, micro_batches: int) -> int:
    return micro_batches // max(1, micro_batches // ranks)


def _ahead(rank: int, ranks: int, virtual: int, micro_batches: int, hop: int) -> int:
    """Forwards before the first backward: a round on all stages but one, and `hop` for each later rank."""
    ahead = (virtual - 1) * _round_size(ranks, micro_batches) + hop * (ranks - 1 - rank)
    return min(ahead, micro_batches * virtual)


_Order = Callable[[int, int, int, int], Iterator[Action]]
_ORDERS: dict[str, _Order] = {
    "gpipe": _gpipe,
    "1f1b": _1f1b,
    "interleaved": _interleaved,
    "looped": _looped,
    "zerobubble": _zerobubble,
    "zbv": zbv,
    "dualpipev": dualpipev,
}
