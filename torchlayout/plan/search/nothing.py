"""Why no layout answers a question, and what is the least that would have to be different."""

from __future__ import annotations

from dataclasses import replace

from torchlayout.layout import Layout
from torchlayout.plan.memory.peak import GIB
from torchlayout.plan.search.answer import Answer
from torchlayout.plan.search.best import search
from torchlayout.plan.search.explain import items, larger
from torchlayout.plan.search.limits import Limit, Limits
from torchlayout.plan.search.question import Question
from torchlayout.plan.search.space import trunks

NEAR = 64
"""Numbers of devices that are tried below and above one that has no legal layout."""


def why_nothing(answer: Answer) -> str:
    """A sentence on why nothing fits, or is legal, and what would be needed."""
    question, smallest = answer.question, answer.found.smallest
    if smallest is None:
        return _nothing_legal(question)
    memory, capacity = smallest.estimate.memory, smallest.estimate.capacity_bytes
    name, largest = max(items(memory), key=lambda item: item[1])
    said = (
        f"nothing fits on {question.gpus:,} x {question.machine.hardware.name}: {smallest.label} needs least, "
        f"{smallest.bytes / GIB:.1f} GiB (most of it {name}, {largest / GIB:.1f} GiB) of {capacity / GIB:.1f} GiB "
        f"less a margin of {question.margin_gib:g} GiB"
    )
    return f"{said}; {_what_would(question, smallest.bytes, capacity)}"


def _what_would(question: Question, needed: float, capacity: float) -> str:
    ways = []
    if needed <= capacity:
        ways.append(f"--margin-gib {int((capacity - needed) / GIB * 10) / 10:g}")
    if question.limits.limits:
        free = search(replace(question, limits=Limits()), keep=1)
        if free.best:
            ways.append(f"no --fix, as in {free.best[0].label}")
    for gpus in larger(question):
        more = search(_frugal(replace(question, gpus=gpus)), keep=1)
        if more.best:
            ways.append(f"{gpus:,} GPUs, as in {more.best[0].label}")
            break
    if not ways:
        return "no number of GPUs up to 16,384 would do: shorten data.sequence_length or take a device with more memory"
    return f"it would fit with {' or with '.join(ways)}"


def _frugal(question: Question) -> Question:
    """The question with the choices that need least memory, where its limits leave them open: found in no time."""
    fields = {"micro_batch": (1,), "recompute": ("ckpt",), "schedule": ("1f1b",)}
    more = [Limit(name, values) for name, values in fields.items() if not question.limits.of(name)]
    return replace(question, limits=Limits((*question.limits.limits, *more)))


def _nothing_legal(question: Question) -> str:
    fixed = f" within --fix {question.limits}" if question.limits.limits else ""
    said = f"no layout of {question.gpus:,} GPUs is legal{fixed}"
    if fixed and next(trunks(replace(question, limits=Limits()), False), None):
        return f"{said}; without --fix there are some"
    problems = question.problems(Layout(shard=question.gpus, **question.kernels))
    near = [str(gpus) for gpus in _legal_near(question)]
    reason = f": {problems[0]}" if problems else ""
    return f"{said}{reason}" + (f"; nearest legal numbers of GPUs: {', '.join(near)}" if near else "")


def _legal_near(question: Question) -> list[int]:
    found = []
    for step in (-1, 1):
        tried = range(question.gpus + step, max(0, question.gpus + step * NEAR), step)
        legal = (n for n in tried if next(trunks(replace(question, gpus=n), False), None))
        found += [n for n in [next(legal, 0)] if n]
    return found
