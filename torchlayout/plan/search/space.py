"""What is searched: all legal layouts within conventions that `--fix` lifts, in families that share their compute."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from torchlayout.layout import Layout
from torchlayout.layout.rules import divisors
from torchlayout.layout.words import CONTEXT_METHODS, LOOPED_SCHEDULES, V_SCHEDULES, ZEROS
from torchlayout.plan.search.conventions import (
    LONG_SEQUENCE,
    MOST_VIRTUAL_STAGES,
    RECOMPUTES,
    SCHEDULES,
    TOKENS_OF_A_CONTEXT_RANK,
    TOKENS_OF_A_MICRO_BATCH,
)
from torchlayout.plan.search.question import Question


class Family(NamedTuple):
    """Layouts that compute alike and differ in how data ranks shard: at any of `levels`, over any of `shards` ranks.

    `layout` shards most: the levels and the degrees are in descending order.
    """

    layout: Layout
    levels: tuple[int, ...]
    shards: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of its layouts."""
        return len(self.levels) * len(self.shards)

    def member(self, level: int, shard: int) -> Layout:
        """One of its layouts."""
        given = self.layout
        if given.zero == level and given.shard == shard:
            return given
        return _layout(given, shard=shard, replicate=given.data_ranks // shard, zero=level)


class Trunk(NamedTuple):
    """Families that differ in what is recomputed; `layout` recomputes nothing, so none of them is faster."""

    layout: Layout
    families: tuple[Family, ...]


def trunks(question: Question, with_context: bool) -> Iterator[Trunk]:
    """All legal layouts of a question, each once; `with_context` opens context parallelism to any sequence.

    Of trunks that differ in micro_batch alone the smallest comes first.
    """
    for pipeline, context, tensor in _degrees(question, with_context):
        data_ranks = question.gpus // (pipeline * context * tensor)
        if question.batch % data_ranks:
            continue
        for choices in _choices(question, pipeline, context, tensor, data_ranks):
            trunk = _trunk(question, data_ranks, choices)
            if trunk.families:
                yield trunk


def _degrees(question: Question, with_context: bool) -> Iterator[tuple[int, int, int]]:
    """(pipeline, context, tensor): the degrees that decide what a rank computes."""
    limits, hardware, every = question.limits, question.machine.hardware, divisors(question.gpus)
    long = with_context or question.sequence >= LONG_SEQUENCE
    most_context = max(1, question.sequence // TOKENS_OF_A_CONTEXT_RANK) if long else 1
    layers = question.config.model.num_hidden_layers
    pipelines = limits.range("pipeline", [d for d in every if d <= layers], every)
    contexts = limits.range("context", [d for d in every if d <= most_context], every)
    tensors = limits.range("tensor", [d for d in every if d <= hardware.gpus_per_node], every)
    for pipeline, context, tensor in product(pipelines, contexts, tensors):
        if question.gpus % (pipeline * context * tensor) == 0:
            yield pipeline, context, tensor


def _choices(
    question: Question, pipeline: int, context: int, tensor: int, data_ranks: int
) -> Iterator[dict[str, object]]:
    """Everything else that decides what a rank computes, but for recomputation."""
    limits = question.limits
    micro = divisors(question.batch // data_ranks)
    most = max(1, TOKENS_OF_A_MICRO_BATCH // question.sequence)
    usual = [size for size in micro if size <= most and size & (size - 1) == 0]
    sizes = limits.range("micro_batch", usual, micro)
    splits = limits.range("sequence_parallel", (False, True)) if tensor > 1 else (False,)
    methods = limits.range("context_method", CONTEXT_METHODS) if context > 1 else ("ring",)
    degrees = {"pipeline": pipeline, "context": context, "tensor": tensor}
    kernels = [limits.range(name, (value,)) for name, value in question.kernels.items()]
    for size, split, method, kernel in product(sizes, splits, methods, product(*kernels)):
        chosen = dict(zip(question.kernels, kernel, strict=True))
        for schedule, virtual in _schedules(question, pipeline):
            more = {"micro_batch": size, "sequence_parallel": split, "context_method": method}
            yield degrees | chosen | more | {"schedule": schedule, "virtual_stages": virtual}


def _schedules(question: Question, pipeline: int) -> Iterator[tuple[str, int]]:
    if pipeline == 1:
        yield "1f1b", 1
        return
    limits, most = question.limits, question.config.model.num_hidden_layers // pipeline
    for schedule in limits.range("schedule", SCHEDULES):
        if schedule in LOOPED_SCHEDULES:
            usual = range(2, min(most, MOST_VIRTUAL_STAGES) + 1)
            for virtual in limits.range("virtual_stages", usual, range(2, most + 1)):
                yield schedule, virtual
        else:
            yield schedule, 2 if schedule in V_SCHEDULES else 1


def _trunk(question: Question, data_ranks: int, choices: dict[str, object]) -> Trunk:
    limits = question.limits
    shards = tuple(
        shard
        for shard in reversed(divisors(data_ranks))
        if limits.allows("shard", shard) and limits.allows("replicate", data_ranks // shard)
    )
    if not shards:
        return Trunk(Layout(), ())
    # Which data ranks shard and which replicate is no matter of legality: one layout of each family is checked.
    base = Layout(**choices, shard=shards[0], replicate=data_ranks // shards[0], zero=1)  # type: ignore[arg-type]
    if question.problems(base):
        return Trunk(base, ())
    families = []
    for recompute in limits.range("recompute", RECOMPUTES):
        levels = tuple(
            level
            for level in reversed(limits.range("zero", ZEROS))
            if not question.problems(_layout(base, recompute=recompute, zero=level))
        )
        if levels:
            family = Family(_layout(base, recompute=recompute, zero=levels[0]), levels, shards)
            families.append(family)
    return Trunk(families[0].layout if families and families[0].layout.recompute == "none" else base, tuple(families))


def _layout(base: Layout, **changes: object) -> Layout:
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    return Layout(**(fields | changes))
