"""The layouts of a question in their order: the best of the search, refined, with what the model can't tell apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchlayout.layout import Layout
from torchlayout.plan.estimate import Estimate
from torchlayout.plan.search.best import SLOWEST, Found, Priced, search
from torchlayout.plan.search.question import Question

REFINED = 50
"""So many of the fastest by closed form have their schedules played."""
POOL = 8
"""So many times as many are searched for, as most of the fastest have no point."""


@dataclass(frozen=True)
class Choice:
    """A layout that fits, as the schedule's play prices it."""

    layout: Layout
    estimate: Estimate
    tie: bool
    """Whether it is as fast as the best within the error of the model."""
    on_front: bool
    """Whether no layout is as fast and needs less memory, nor faster with as little."""

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.estimate.time.seconds


@dataclass(frozen=True)
class Answer:
    """Layouts that fit, fastest first, and the front of speed and memory; none where nothing fits."""

    question: Question
    found: Found
    choices: tuple[Choice, ...]
    front: tuple[Choice, ...]

    @property
    def best(self) -> Choice | None:
        """The fastest layout that fits."""
        return self.choices[0] if self.choices else None


def answer(question: Question, at_least: int = 1, refined: int = REFINED) -> Answer:
    """Search, play the schedules of the `refined` fastest layouts and of the front, and rank by that.

    Sharding and recomputing are there to save memory: a layout that needs no less of it than a faster one, from which
    it differs in these alone, has no point and is left out.
    """
    found, best = _searched(question, at_least, max(at_least, refined))
    layouts = {entry.estimate.job.layout: entry.label for entry in (*best, *found.front)}
    played = (question.machine.refine(question.job(layout)) for layout in layouts)
    fitting = sorted((estimate for estimate in played if estimate.fits(question.margin_gib)), key=_speed)
    if not fitting:
        return Answer(question, found, (), ())
    fastest, spread = fitting[0].time.seconds, question.machine.calibration.time_spread
    front = {id(estimate) for estimate in _front(fitting) if estimate.time.seconds <= fastest * SLOWEST}
    choices = [
        Choice(
            estimate.job.layout,
            estimate,
            tie=estimate.time.seconds <= fastest * (1 + spread),
            on_front=id(estimate) in front,
        )
        for estimate in fitting
    ]
    kept = {entry.label for entry in best}
    listed = tuple(choice for choice in choices if choice is choices[0] or layouts[choice.layout] in kept)
    return Answer(question, found, listed, tuple(choice for choice in choices if choice.on_front))


def _searched(question: Question, at_least: int, most: int) -> tuple[Found, list[Priced]]:
    """What the search found, and the fastest that have a point: of as many as there are, at least so many."""
    keep = most * POOL
    while True:
        found = search(question, keep)
        best = _with_a_point(found.best)[:most]
        if len(best) >= at_least or len(found.best) < keep:
            return found, best
        keep *= POOL


def _with_a_point(fastest_first: list[Priced]) -> list[Priced]:
    least: dict[Layout, float] = {}
    kept = []
    for entry in fastest_first:
        layout = entry.estimate.job.layout
        alike = replace(layout, replicate=1, shard=1, recompute="none", zero=None)
        if entry.bytes < least.get(alike, float("inf")):
            least[alike] = entry.bytes
            kept.append(entry)
    return kept


def _speed(estimate: Estimate) -> tuple[float, float, str]:
    return estimate.time.seconds, estimate.memory.bytes, str(estimate.job.layout)


def _front(fastest_first: Iterable[Estimate]) -> list[Estimate]:
    """Those that need less memory than every faster one."""
    front: list[Estimate] = []
    for estimate in fastest_first:
        if not front or estimate.memory.bytes < front[-1].memory.bytes:
            front.append(estimate)
    return front
