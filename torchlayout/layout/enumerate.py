"""All legal layouts of a number of ranks, lazily and in a fixed order: what sweeps and the planner search."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from itertools import product
from typing import TYPE_CHECKING

from torchlayout.errors import InputError
from torchlayout.layout import rules, words
from torchlayout.layout.value import Layout

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig, Precision

_DEGREES = tuple(words.AXES.values())
# What a free field ranges over. ckptK has no end and kernels are no placement: both only where a
# constraint names them.
_FREE: Mapping[str, tuple[object, ...]] = {
    "sequence_parallel": (False, True),
    "context_method": words.CONTEXT_METHODS,
    "recompute": words.RECOMPUTES,
    "zero": words.ZEROS,
    "attention": ("sdpa",),
    "norm": ("fused",),
    "compile": (False,),
}


def enumerate_layouts(
    world: int,
    model: ModelConfig,
    batch: int,
    sequence: int,
    precision: Precision,
    constraints: Mapping[str, object],
) -> Iterator[Layout]:
    """Every legal layout of `world` ranks within the constraints, each once.

    Raises InputError at once for an unknown constraint.
    """
    if world < 1:
        raise InputError(f"a world of {world} ranks has no layout; legal: 1 or more")
    allowed = {name: allowed_values(name, given) for name, given in constraints.items()}
    return _layouts(world, model, batch, sequence, precision, allowed)


def allowed_values(name: str, given: object) -> tuple[object, ...]:
    """The values of one constraint, each tried in a layout in which it has a meaning.

    Raises InputError for an unknown field or value.
    """
    names = [field.name for field in fields(Layout)]
    if name not in names:
        raise InputError(f'constraint "{name}" is no field of a layout; {words.nearest(name, names)}')
    single = isinstance(given, str) or not isinstance(given, Collection)
    values = (given,) if single else tuple(given)  # type: ignore[arg-type]
    for value in values:
        looped = name == "virtual_stages" or value in words.LOOPED_SCHEDULES
        trial = {"schedule": "looped", "virtual_stages": 2} if looped else {}
        Layout(**{"pipeline": 2, "context": 2, "tensor": 2, **trial, name: value})  # type: ignore[arg-type]
    return values


def _layouts(
    world: int,
    model: ModelConfig,
    batch: int,
    sequence: int,
    precision: Precision,
    allowed: Mapping[str, tuple[object, ...]],
) -> Iterator[Layout]:
    for degrees in _factorizations(world, len(_DEGREES)):
        sizes = dict(zip(_DEGREES, degrees, strict=True))
        if any(name in allowed and degree not in allowed[name] for name, degree in sizes.items()):
            continue
        base = Layout(**sizes)  # type: ignore[arg-type]
        if not _possible(base, model, batch):
            continue
        seen: set[Layout] = set()
        for layout in _choices(base, model, batch, allowed):
            if layout not in seen and not rules.violations(layout, model, batch, sequence, precision):
                seen.add(layout)
                yield layout


def _factorizations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (number,)
        return
    for first in rules.divisors(number):
        for rest in _factorizations(number // first, parts - 1):
            yield (first, *rest)


def _possible(base: Layout, model: ModelConfig, batch: int) -> bool:
    """Whether any choice can make these degrees legal: cheap, so impossible degrees cost nothing more."""
    return not [*rules.tensor_problems(base, model), *rules.pipeline_problems(base, model)] and (
        batch >= base.data_ranks and batch % base.data_ranks == 0
    )


def _choices(
    base: Layout, model: ModelConfig, batch: int, allowed: Mapping[str, tuple[object, ...]]
) -> Iterator[Layout]:
    """All choices on the degrees of `base`; a choice without its axis keeps its default."""
    ranges = {name: allowed.get(name, free) for name, free in _FREE.items()}
    if base.tensor == 1:
        ranges["sequence_parallel"] = (False,)
    if base.context == 1:
        ranges["context_method"] = ("ring",)
    ranges["micro_batch"] = allowed.get("micro_batch", tuple(rules.divisors(batch // base.data_ranks)))
    names = (*ranges, "schedule", "virtual_stages")
    for values in product(*ranges.values()):
        for scheduled in _scheduled(base.pipeline, model.num_hidden_layers, allowed):
            yield replace(base, **dict(zip(names, (*values, *scheduled), strict=True)))  # type: ignore[arg-type]


def _scheduled(
    pipeline: int, layers: int, allowed: Mapping[str, tuple[object, ...]]
) -> Iterator[tuple[object, object]]:
    """Schedules with their virtual stages; looped ones with every number that leaves no stage empty."""
    if pipeline == 1:
        yield "1f1b", 1
        return
    for schedule in allowed.get("schedule", words.SCHEDULES):
        if schedule in words.LOOPED_SCHEDULES:
            for virtual in allowed.get("virtual_stages", tuple(range(2, layers // pipeline + 1))):
                yield schedule, virtual
        else:
            yield schedule, 1
