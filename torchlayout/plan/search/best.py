"""The best layouts of a question: exact within the space's conventions, best first, most of it never priced.

Three properties of the formulas make that possible. Layouts of a family, which differ in sharding alone, spend the
same time on everything but DATA_ITEMS, so what one of them spends without those is below all of them; and recomputing
takes time. Sharding less never needs less memory, so where the member that shards most does not fit none does. And
larger micro-batches need no less than LESS of what smaller ones need, as long as there are several (they may hold
fewer gradients that wait), so where all with the smallest need more than the rest allows none fits.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from torchlayout.layout import Layout, words
from torchlayout.plan.estimate import Estimate
from torchlayout.plan.memory.peak import GIB
from torchlayout.plan.search.conventions import LONG_SEQUENCE
from torchlayout.plan.search.question import Question
from torchlayout.plan.search.space import Family, Trunk, trunks

DATA_ITEMS = ("shard", "reduce", "optimizer")
"""Items of a step's time that depend on how data ranks shard; the others do not."""
LESS = 0.9
"""Part of a rank's memory that larger micro-batches need at least."""
SLOWEST = 1.25
"""The front of speed and memory ends where a step takes so many times the fastest."""


class Priced(NamedTuple):
    """A layout with its price; the order is by time, then by memory, then by label."""

    seconds: float
    bytes: float
    label: str
    estimate: Estimate


@dataclass
class Found:
    """What a search found: the fastest layouts that fit, the front of speed and memory, and how much it looked at."""

    best: list[Priced] = field(default_factory=list)
    front: list[Priced] = field(default_factory=list)
    considered: int = 0
    priced: int = 0
    too_large: int = 0
    smallest: Priced | None = None
    """Where nothing fits: the layout that needs least memory."""
    with_context: bool = False
    """Whether context parallelism was opened because nothing fits without."""


def search(question: Question, keep: int) -> Found:
    """The `keep` fastest layouts that fit, by closed form, and those of the front that are not too slow."""
    engine = _Search(question, keep)
    found = engine.run(trunks(question, with_context=False))
    if found.best or question.limits.of("context") or question.sequence >= LONG_SEQUENCE:
        return found
    found.with_context = True
    return engine.run(trunk for trunk in trunks(question, with_context=True) if trunk.layout.context > 1)


class _Search:
    """One search; nodes wait in the order of the least time that anything below them can take."""

    def __init__(self, question: Question, keep: int) -> None:
        self.question, self.keep = question, keep
        self.budget = question.machine.hardware.memory_gib * GIB - question.margin_gib * GIB
        self.found = Found()
        self._order = count()
        self._waiting: list[tuple[float, int, Trunk | Family, Estimate]] = []

    def run(self, every: Iterable[Trunk]) -> Found:
        """Adds the best layouts below these trunks to what was found before."""
        roomy: dict[tuple[Layout, bool], bool] = {}
        for trunk in every:
            size = sum(family.size for family in trunk.families)
            self.found.considered += size
            # A single micro-batch accumulates no gradients, which is another matter.
            single = self.question.job(trunk.layout).micro_batches == 1
            alike = (replace(trunk.layout, micro_batch=1, zero=None), single)
            if alike not in roomy:
                roomy[alike] = self._may_fit(trunk)
            if roomy[alike]:
                self._wait(trunk, self._price(trunk.layout))
            else:
                self.found.too_large += size
        while self._waiting:
            floor, _, node, estimate = heapq.heappop(self._waiting)
            if floor > self._horizon():
                break
            if isinstance(node, Trunk):
                self._open_trunk(node, estimate)
            else:
                self._open_family(node, floor, estimate)
        self._end_front()
        return self.found

    def _may_fit(self, trunk: Trunk) -> bool:
        """Whether a layout below a trunk, or with larger micro-batches, may fit.

        ckptK is not looked at where all and nothing recomputed are: it keeps no less than one of these.
        """
        families = {family.layout.recompute: family for family in trunk.families}
        if {"none", "ckpt"} <= families.keys():
            families = {"ckpt": families["ckpt"]} | {
                name: families[name] for name in words.RECOMPUTES if name in families
            }
        for family in families.values():
            for level in family.levels:
                layout = family.member(level, family.shards[0])
                price = self._price(layout)
                if price.memory.bytes * LESS <= self.budget:
                    return True
                self._missed(Priced(price.time.seconds, price.memory.bytes, str(layout), price))
        return False

    def _price(self, layout: Layout) -> Estimate:
        self.found.priced += 1
        return self.question.machine.estimate(self.question.job(layout))

    def _wait(self, node: Trunk | Family, estimate: Estimate) -> None:
        heapq.heappush(self._waiting, (floor_seconds(estimate), next(self._order), node, estimate))

    def _open_trunk(self, trunk: Trunk, estimate: Estimate) -> None:
        for family in trunk.families:
            self._wait(family, estimate if family.layout == trunk.layout else self._price(family.layout))

    def _open_family(self, family: Family, floor: float, estimate: Estimate) -> None:
        for level in family.levels:
            for done, priced in enumerate(self._members(family, level, estimate)):
                if priced.bytes > self.budget:
                    self.found.too_large += len(family.shards) - done
                    self._missed(priced)
                    break
                self._offer(priced)
                if done == 0 and self._hopeless(floor, priced.bytes):
                    break

    def _members(self, family: Family, level: int, estimate: Estimate) -> Iterator[Priced]:
        for shard in family.shards:
            layout = family.member(level, shard)
            price = estimate if layout is family.layout else self._price(layout)
            yield Priced(price.time.seconds, price.memory.bytes, str(layout), price)

    def _horizon(self) -> float:
        """Seconds from which on a layout is of no interest."""
        best = self.found.best
        if len(best) < self.keep:
            return float("inf")
        return max(best[-1].seconds, best[0].seconds * SLOWEST)

    def _hopeless(self, seconds: float, needed: float) -> bool:
        """Whether no layout that takes as long and needs as much can be among the best or on the front."""
        best = self.found.best
        return len(best) == self.keep and seconds >= best[-1].seconds and self._dominated(seconds, needed)

    def _dominated(self, seconds: float, needed: float) -> bool:
        """Whether a layout of the front is as fast and needs no more memory."""
        front = self.found.front
        faster = bisect_right(front, seconds, key=lambda priced: priced.seconds)
        return faster > 0 and front[faster - 1].bytes <= needed

    def _offer(self, priced: Priced) -> None:
        best, front = self.found.best, self.found.front
        if len(best) < self.keep or priced[:3] < best[-1][:3]:
            insort(best, priced, key=lambda other: other[:3])
            del best[self.keep :]
        if not self._dominated(priced.seconds, priced.bytes):
            place = bisect_right(front, priced.seconds, key=lambda other: other.seconds)
            end = place
            while end < len(front) and front[end].bytes >= priced.bytes:
                end += 1
            # One that is as fast and needs more goes as well.
            while place > 0 and front[place - 1].seconds == priced.seconds:
                place -= 1
            front[place:end] = [priced]

    def _missed(self, priced: Priced) -> None:
        least = self.found.smallest
        if least is None or priced.bytes < least.bytes:
            self.found.smallest = priced

    def _end_front(self) -> None:
        front = self.found.front
        self.found.front = [priced for priced in front if priced.seconds <= front[0].seconds * SLOWEST]


def floor_seconds(estimate: Estimate) -> float:
    """Seconds below which no layout of the family can be."""
    time = estimate.time
    of_sharding: float = sum(getattr(time, item) for item in DATA_ITEMS)
    return time.seconds - of_sharding
