"""One layout by name: what it costs, what breaks it, what would make it fit, and how far it is from the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.layout.rules import divisors
from torchlayout.layout.structure import default_zero
from torchlayout.plan.estimate import Estimate
from torchlayout.plan.memory.peak import GIB
from torchlayout.plan.search.answer import Choice
from torchlayout.plan.search.best import search
from torchlayout.plan.search.conventions import RECOMPUTES
from torchlayout.plan.search.limits import Limit, Limits
from torchlayout.plan.search.question import Question

SHOWN = 5
"""Remedies that are named, fastest first."""


@dataclass(frozen=True)
class Remedy:
    """A layout near the one that does not fit, and what is different in it."""

    change: str
    estimate: Estimate


@dataclass(frozen=True)
class Explanation:
    """What there is to say of one layout."""

    label: str
    problems: tuple[str, ...] = ()
    """The rules that it breaks; then nothing else is said."""
    estimate: Estimate | None = None
    over_bytes: float = 0.0
    """By how much the worst rank goes above the memory less the margin; below zero: what is left."""
    breaks: str = ""
    """Where it does not fit: the item of memory that breaks it."""
    remedies: tuple[Remedy, ...] = ()
    """Where it does not fit: what would make it."""
    slower: float | None = None
    """By which part of the best layout's time it is slower than the best."""
    losses: tuple[tuple[str, float], ...] = ()
    """Items in which it takes longer than the best, in seconds, the largest first."""


def explain(question: Question, layout: Layout, best: Choice | None) -> Explanation:
    """Everything about one layout, beside the best of the question."""
    problems = question.problems(layout)
    if layout.world != question.gpus:
        problems.insert(0, f"layout {layout} is for {layout.world} GPUs and there are {question.gpus}")
    if problems:
        return Explanation(str(layout), tuple(problems))
    estimate = question.machine.refine(question.job(layout))
    needed, limit = estimate.memory.bytes, estimate.capacity_bytes - question.margin_gib * GIB
    found = tuple(remedies(question, layout)) if needed > limit else ()
    breaks = breaking_item(estimate, found) if needed > limit else ""
    slower = None if best is None else estimate.time.seconds / best.seconds - 1
    lost = () if best is None else tuple(_losses(estimate, best.estimate))
    return Explanation(str(layout), (), estimate, needed - limit, breaks, found, slower, lost)


def _losses(estimate: Estimate, best: Estimate) -> list[tuple[str, float]]:
    apart = ((name, mine - dict(items(best.time))[name]) for name, mine in items(estimate.time))
    return sorted(((name, seconds) for name, seconds in apart if seconds > 0), key=lambda pair: -pair[1])


def items(costs: Any) -> list[tuple[str, float]]:
    """The items of a StepTime or of a Memory, with their names."""
    named = ((field.name, getattr(costs, field.name)) for field in fields(costs))
    return [(name, value) for name, value in named if not isinstance(value, str)]


def breaking_item(estimate: Estimate, found: tuple[Remedy, ...]) -> str:
    """The item of which the fastest remedy saves most; without a remedy the largest."""
    mine = dict(items(estimate.memory))
    other = dict(items(found[0].estimate.memory)) if found else {}
    return max(mine, key=lambda name: mine[name] - other.get(name, 0.0))


def remedies(question: Question, layout: Layout) -> list[Remedy]:
    """What would make a layout fit, fastest first: one change, of each kind the best; without any, several changes."""
    kinds: dict[str, Remedy] = {}
    for kind, change, other in _neighbours(question, layout):
        if question.problems(other) or not _allowed(question, layout, other):
            continue
        estimate = question.machine.estimate(question.job(other))
        known = kinds.get(kind)
        if estimate.fits(question.margin_gib) and (known is None or _seconds(estimate) < _seconds(known.estimate)):
            kinds[kind] = Remedy(change, estimate)
    found = sorted(kinds.values(), key=lambda remedy: _seconds(remedy.estimate))[:SHOWN]
    return [*(found or _several(question, layout)), *_more_devices(question, layout)]


def _allowed(question: Question, layout: Layout, other: Layout) -> bool:
    """Whether what is different keeps to `--fix`."""
    return all(question.limits.allows(name, value) for name, value in _differences(layout, other))


def _seconds(estimate: Estimate) -> float:
    return estimate.time.seconds


def _neighbours(question: Question, layout: Layout) -> Iterator[tuple[str, str, Layout]]:
    """(kind, change, layout) of every layout one change away on as many devices, legal or not."""
    yield from _choices(question, layout)
    for field in ("tensor", "pipeline", "context"):
        for factor in divisors(layout.data_ranks)[1:]:
            # Ranks come from the replicas first: sharding over fewer would need more memory.
            from_replicas = _common(layout.replicate, factor)
            changes: dict[str, Any] = {
                field: getattr(layout, field) * factor,
                "replicate": layout.replicate // from_replicas,
                "shard": layout.shard // (factor // from_replicas),
            }
            if layout.shard % (factor // from_replicas) == 0:
                yield from _changed(layout, field, f"{field} = {changes[field]}", changes)


def _common(number: int, factor: int) -> int:
    return max(d for d in divisors(number) if factor % d == 0)


def _choices(question: Question, layout: Layout) -> Iterator[tuple[str, str, Layout]]:
    for recompute in RECOMPUTES:
        yield from _changed(layout, "recompute", f"recompute = {recompute}", {"recompute": recompute})
    for size in divisors(layout.micro_batch)[:-1]:
        yield from _changed(layout, "micro_batch", f"micro_batch = {size}", {"micro_batch": size})
    if layout.tensor > 1:
        yield from _changed(layout, "sequence_parallel", "sequence parallelism", {"sequence_parallel": True})
    for level in range(int(layout.zero or 1) + 1, 4):
        yield from _changed(layout, "zero", f"zero = {level}", {"zero": level})
    for shard in divisors(layout.data_ranks):
        if shard > layout.shard:
            changes = {"shard": shard, "replicate": layout.data_ranks // shard}
            yield from _changed(layout, "shard", f"shard = {shard} of {layout.data_ranks} data ranks", changes)
    if layout.schedule != "1f1b":
        yield from _changed(layout, "schedule", "schedule = 1f1b", {"schedule": "1f1b", "virtual_stages": 1})
    yield from _changed(layout, "norm", "norm = fused", {"norm": "fused"})
    yield from _changed(layout, "attention", "attention = sdpa", {"attention": "sdpa"})


def _changed(layout: Layout, kind: str, change: str, changes: dict[str, Any]) -> Iterator[tuple[str, str, Layout]]:
    if "pipeline" in changes and layout.zero == default_zero(layout.pipeline):
        changes["zero"] = None  # what was the default of its pipeline degree stays one
    try:
        other = replace(layout, **changes)
    except InputError:
        return
    if other != layout:
        yield kind, change, other


def _several(question: Question, layout: Layout) -> list[Remedy]:
    """The fastest layout that fits with the same degrees but for data ranks; or with any."""
    same = (Limit(field, (getattr(layout, field),)) for field in ("pipeline", "context", "tensor"))
    for limits in (Limits(tuple(same)), question.limits):
        found = search(replace(question, limits=limits), keep=1)
        if found.best:
            other = found.best[0].estimate
            different = (f"{name} = {value}" for name, value in _differences(layout, other.job.layout))
            return [Remedy(", ".join(different), other)]
    return []


def _more_devices(question: Question, layout: Layout) -> list[Remedy]:
    """The same layout on the fewest more devices that make it fit, all of them to shard over."""
    for factor in (2, 4, 8, 16):
        other = replace(layout, shard=layout.shard * factor)
        if not question.problems(other) and _allowed(question, layout, other):
            estimate = question.machine.estimate(question.job(other))
            if estimate.fits(question.margin_gib):
                return [Remedy(f"{other.world} GPUs", estimate)]
    return []


def _differences(layout: Layout, other: Layout) -> list[tuple[str, object]]:
    pairs = ((field.name, getattr(layout, field.name), getattr(other, field.name)) for field in fields(Layout))
    return [(name, new) for name, old, new in pairs if old != new]


def larger(question: Question) -> Iterator[int]:
    """Numbers of devices above the question's, nearest first, that may be asked for instead."""
    most, gpus = 16384, question.gpus
    return iter(sorted(set(chain((2**n for n in range(15) if gpus < 2**n <= most), _multiples(gpus, most)))))


def _multiples(gpus: int, most: int) -> list[int]:
    return [gpus * factor for factor in (2, 3, 4, 6, 8, 16, 32, 64) if gpus * factor <= most]
