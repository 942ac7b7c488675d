"""What would change the answer: sequences, batches, devices, links, margins; and how the best layout scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchlayout.layout import Layout
from torchlayout.plan.estimate import Estimate
from torchlayout.plan.search.answer import Answer, Choice, answer
from torchlayout.plan.search.question import Question

MOST_GPUS = 16384
KEPT = 8
"""So many of the fastest by closed form are refined where only the best is asked for."""
MARGINS_GIB = (0.0, 8.0)


@dataclass(frozen=True)
class Change:
    """A change of the question after which another layout is best."""

    change: str
    best: Choice | None
    """The layout that is best then; None: nothing fits."""
    before: Layout
    """The layout that was best."""
    gain: float | None
    """By which part of the new layout's time the old one is slower then; None: it can't run."""
    note: str = ""
    """Why the old one can't run then."""


def changes(given: Answer) -> Iterator[tuple[str, Change | None]]:
    """Each change that is tried, with what it does to the answer; None where the best layout stays."""
    if given.best is None:
        return
    for name, question, before in _questions(given.question, given.best.layout):
        best = answer(question, refined=KEPT).best
        if best is not None and _same(best.layout, before, question.gpus != given.question.gpus):
            yield name, None
            continue
        note, then = _price(question, before)
        gain = None if best is None or then is None else then.time.seconds / best.seconds - 1
        # The refined order may differ by less than the search's closed form can tell.
        yield name, None if gain is not None and gain <= 0 else Change(name, best, before, gain, note)


def _questions(question: Question, best: Layout) -> Iterator[tuple[str, Question, Layout]]:
    """(change, question, the best layout as it would run there)."""
    sequence, batch, gpus = question.sequence, question.batch, question.gpus
    for length in (sequence * 2, sequence // 2):
        if length * 2 == sequence or length == sequence * 2:
            yield f"sequences of {length:,} tokens", question.with_sequence(length), best
    for size in (batch * 2, batch // 2):
        if size * 2 == batch or size == batch * 2:
            yield f"a global batch of {size:,} sequences", question.with_batch(size), best
    if gpus * 2 <= MOST_GPUS:
        yield f"{gpus * 2:,} GPUs", replace(question, gpus=gpus * 2), replace(best, replicate=best.replicate * 2)
    if gpus % 2 == 0 and best.data_ranks % 2 == 0:
        yield f"{gpus // 2:,} GPUs", replace(question, gpus=gpus // 2), _halved(best)
    for word, factor in (("twice", 2.0), ("half", 0.5)):
        if gpus > question.machine.hardware.gpus_per_node:
            yield f"links between nodes {word} as fast", question.with_links(factor), best
    for margin in MARGINS_GIB:
        if margin != question.margin_gib:
            yield f"a margin of {margin:g} GiB", replace(question, margin_gib=margin), best


def _halved(layout: Layout) -> Layout:
    if layout.replicate % 2 == 0:
        return replace(layout, replicate=layout.replicate // 2)
    return replace(layout, shard=layout.shard // 2)


def _same(best: Layout, before: Layout, gpus_differ: bool) -> bool:
    """Whether the layout stays; on more or fewer devices it may share its states over data ranks in another way."""
    if gpus_differ:
        before = replace(before, replicate=best.replicate, shard=best.shard)
    return best == before


def _price(question: Question, layout: Layout) -> tuple[str, Estimate | None]:
    """Why a layout can't run, or its price."""
    if problems := question.problems(layout):
        return problems[0], None
    estimate = question.machine.refine(question.job(layout))
    if not estimate.fits(question.margin_gib):
        return f"{layout} no longer fits: it needs {estimate.memory.bytes / 2**30:.1f} GiB", None
    return "", estimate


@dataclass(frozen=True)
class Scale:
    """The best layout of a number of devices, and its speed a device against the smallest number that fits."""

    gpus: int
    best: Choice | None
    efficiency: float | None = None


def scaling(question: Question, smallest: int = 8) -> list[Scale]:
    """The best layout on each power of two from `smallest` to the question's number of devices, and on that.

    Where a number of devices has too little memory, smaller ones have, and are not searched.
    """
    counts = [2**n for n in range(15) if smallest <= 2**n < question.gpus] if question.gpus > smallest else []
    best: dict[int, Choice] = {}
    for gpus in (question.gpus, *reversed(counts)):
        found = answer(replace(question, gpus=gpus), refined=KEPT)
        if found.best is not None:
            best[gpus] = found.best
        elif found.found.smallest is not None:
            break
    speeds = {gpus: 1 / choice.seconds / gpus for gpus, choice in best.items()}
    first = speeds[min(speeds)] if speeds else 1.0
    return [
        Scale(gpus, best.get(gpus), speeds[gpus] / first if gpus in best else None) for gpus in (*counts, question.gpus)
    ]
