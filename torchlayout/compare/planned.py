"""The layouts of a study: labels or the combinations of a sweep, the illegal ones with their reason."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import SimpleNamespace
from typing import Any, cast

from torchlayout.config import Config
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.layout import label as grammar
from torchlayout.layout.structure import default_zero

MOST_COMBINATIONS = 100_000
DEGREES = ("pipeline", "replicate", "context", "tensor")


@dataclass(frozen=True)
class Planned:
    """A layout of a study; one that cannot be run has a reason, and no `layout` where it is not even a value."""

    label: str
    layout: Layout | None
    skipped_reason: str | None
    axes: Mapping[str, Any]


def parse(label: str, base: Config) -> Layout:
    """The layout of a label, kernels that it leaves out being those of the base; raises InputError."""
    kernels = base.kernels
    return Layout.parse(label, attention=kernels.attention, norm=kernels.norm, compile=kernels.compile)


def from_labels(labels: Sequence[str], base: Config, world: int) -> tuple[Planned, ...]:
    """The layouts of these labels; raises InputError where one is no label or names the layout of another."""
    problems: list[str] = []
    planned: dict[str, Planned] = {}
    for label in labels:
        try:
            layout = parse(label, base)
        except InputError as error:
            problems += error.problems
            continue
        if str(layout) in planned:
            problems.append(f'layouts names {layout} twice ("{label}"); legal: once, and compare.repeats for more runs')
        planned[str(layout)] = _judged(layout, base, world)
    if problems:
        raise InputError(*problems)
    return tuple(planned.values())


def from_sweep(choices: Mapping[str, Sequence[Any]], base: Config, world: int) -> tuple[Planned, ...]:
    """Every combination of the choices; `shard`, where it is no choice, is what is left of the ranks.

    Raises InputError for a value that no layout can have, and for too many combinations.
    """
    count = math.prod(len(values) for values in choices.values())
    if count > MOST_COMBINATIONS:
        raise InputError(f"[sweep] has {count:,} combinations; legal: at most {MOST_COMBINATIONS:,}")
    _require_legal_values(choices, base, world)
    kernels = base.kernels
    planned: dict[str, Planned] = {}
    for values in itertools.product(*choices.values()):
        given = dict(zip(choices, values, strict=True))
        given = {"attention": kernels.attention, "norm": kernels.norm, "compile": kernels.compile} | given
        one = _combination(given, base, world)
        planned.setdefault(one.label, one)
    return tuple(planned.values())


def _require_legal_values(choices: Mapping[str, Sequence[Any]], base: Config, world: int) -> None:
    # Virtual stages are legal or not together with a schedule, combination by combination.
    alone = {name: values for name, values in choices.items() if name != "virtual_stages"}
    try:
        # Looks at the constraints at once, and at layouts only when it is iterated.
        Layout.enumerate(world, base.model, base.batch.global_size, base.data.sequence_length, base.precision, **alone)
    except InputError as error:
        raise InputError(*(f"[sweep]: {problem}" for problem in error.problems)) from error


def _combination(given: dict[str, Any], base: Config, world: int) -> Planned:
    rest = math.prod(given.get(name, 1) for name in DEGREES)
    reason = None
    if "shard" not in given:
        given = given | {"shard": max(1, world // rest)}
        if world % rest:
            product = " x ".join(f"layout.{name} = {given[name]}" for name in DEGREES if given.get(name, 1) > 1)
            reason = f"{product} does not divide the {world} ranks"
    try:
        layout = Layout(**given)
    except InputError as error:
        label, axes = _shown(given)
        return Planned(label, None, "; ".join(error.problems), axes)
    return Planned(str(layout), layout, reason, asdict(layout)) if reason else _judged(layout, base, world)


def _judged(layout: Layout, base: Config, world: int) -> Planned:
    problems = []
    if layout.world != world:
        problems.append(f"layout {layout} is for {layout.world} ranks, and the study has {world}")
    problems += layout.check(base.model, base.batch.global_size, base.data.sequence_length, base.precision)
    return Planned(str(layout), layout, "; ".join(problems) or None, asdict(layout))


def _shown(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Label and fields of what cannot be a Layout."""
    axes = {field.name: given.get(field.name, field.default) for field in fields(Layout)}
    if axes["zero"] is None:
        axes["zero"] = default_zero(axes["pipeline"])
    return grammar.show(cast(Layout, SimpleNamespace(**axes))), axes
