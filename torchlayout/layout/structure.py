"""What makes a Layout no layout, whatever the model: wrong types, unknown words, choices without an axis."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torchlayout.layout import words

if TYPE_CHECKING:
    from torchlayout.layout.value import Layout

_NUMBERS = (*words.AXES.values(), "micro_batch", "virtual_stages")
_SWITCHES = ("sequence_parallel", "compile")
_CHOICES: dict[str, Sequence[str]] = {
    "schedule": words.SCHEDULES,
    "context_method": words.CONTEXT_METHODS,
    "attention": words.ATTENTIONS,
    "norm": words.NORMS,
}


def default_zero(pipeline: int) -> int:
    """Zero level of a layout that names none: level 3 would gather in each micro-batch of a pipeline."""
    return 3 if pipeline == 1 else 2


def problems(layout: Layout) -> list[str]:
    """Every structural mistake as a sentence: the values one by one and, if these are right, together."""
    return list(_value_problems(layout)) or list(_combination_problems(layout))


def _value_problems(layout: Layout) -> Iterator[str]:
    for name in _NUMBERS:
        if problem := _number_problem(name, getattr(layout, name)):
            yield problem
    for name in _SWITCHES:
        value = getattr(layout, name)
        if not isinstance(value, bool):
            yield f"layout.{name} = {value!r} is neither true nor false"
    for name, legal in _CHOICES.items():
        value = getattr(layout, name)
        if value not in legal:
            yield _choice_problem(name, value, legal)
    zero = layout.zero
    if zero is not None and (type(zero) is not int or zero not in words.ZEROS):
        yield f"layout.zero = {zero!r} is no level of sharding; legal: 1, 2, 3"
    recompute = layout.recompute
    if not isinstance(recompute, str) or not (
        recompute in words.RECOMPUTES or words.RECOMPUTE_EVERY.fullmatch(recompute)
    ):
        yield _choice_problem("recompute", recompute, [*words.RECOMPUTES, "ckptK with K >= 1"])


def _number_problem(name: str, value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"layout.{name} = {value!r} is not a whole number; legal: 1 or more"
    if not 1 <= value <= words.LARGEST:
        shown = value if abs(value) <= words.LARGEST else "a number of more than nine digits"
        return f"layout.{name} = {shown} is outside what a layout can have; legal: 1 to {words.LARGEST}"
    return None


def _choice_problem(name: str, value: object, legal: Sequence[str]) -> str:
    if not isinstance(value, str):
        return f"layout.{name} = {value!r} is not a word; legal: {', '.join(legal)}"
    stem = value.rstrip("0123456789")
    if name == "schedule" and stem in words.LOOPED_SCHEDULES:
        number = value[len(stem) :]
        return (
            f'layout.schedule = "{value}" carries a number, which belongs into layout.virtual_stages; '
            f'legal: layout.schedule = "{stem}" with layout.virtual_stages = {number}'
        )
    return f"layout.{name} = {json.dumps(value)} is unknown; {words.nearest(value, legal)}"


def _combination_problems(layout: Layout) -> Iterator[str]:
    if layout.sequence_parallel and layout.tensor == 1:
        yield (
            "layout.sequence_parallel = true splits the sequence over the tensor axis and layout.tensor = 1; "
            "legal: layout.tensor of 2 or more, or layout.sequence_parallel = false"
        )
    if layout.context_method != "ring" and layout.context == 1:
        yield (
            f'layout.context_method = "{layout.context_method}" splits the sequence over the context axis '
            "and layout.context = 1; legal: layout.context of 2 or more, or the default context_method"
        )
    if layout.schedule != "1f1b" and layout.pipeline == 1:
        yield (
            f'layout.schedule = "{layout.schedule}" orders the stages of a pipeline and layout.pipeline = 1; '
            "legal: layout.pipeline of 2 or more, or the default schedule"
        )
    elif problem := _virtual_stages_problem(layout):
        yield problem


def _virtual_stages_problem(layout: Layout) -> str | None:
    schedule, virtual = layout.schedule, layout.virtual_stages
    given = f'layout.virtual_stages = {virtual} with layout.schedule = "{schedule}"'
    if schedule in words.LOOPED_SCHEDULES and virtual < 2:
        return f"{given} leaves nothing to loop over; legal: 2 or more, in a label {schedule}2"
    # One is the default of the field, so it stands for "not given" and becomes two.
    if schedule in words.V_SCHEDULES and virtual not in (1, 2):
        return f"{given} is no V, which has two stages on each rank; legal: 2"
    if schedule in words.SINGLE_STAGE_SCHEDULES and virtual != 1:
        return f"{given} has one stage on each rank; legal: 1, or a looped schedule"
    return None
