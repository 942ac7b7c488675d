"""The label grammar: `pp2-fsdp2-tp2+sp` to a Layout and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from torchlayout.errors import InputError
from torchlayout.layout import words
from torchlayout.layout.structure import default_zero
from torchlayout.layout.value import Layout

_NUMBER = r"([0-9]+)"


class _Choice(NamedTuple):
    """One form of choice: how it is written and the fields it sets; two that set the same field conflict."""

    pattern: re.Pattern[str]
    shown: str
    fields: Callable[[re.Match[str]], dict[str, object]]


def _word(word: str, **fields: object) -> _Choice:
    return _Choice(re.compile(re.escape(word)), word, lambda _: dict(fields))


def _choices() -> Iterator[_Choice]:
    yield _Choice(re.compile("mb" + _NUMBER), "mbN", lambda m: {"micro_batch": int(m[1])})
    yield _word("sp", sequence_parallel=True)
    for schedule in words.SINGLE_STAGE_SCHEDULES:
        yield _word(schedule, schedule=schedule, virtual_stages=1)
    for schedule in words.LOOPED_SCHEDULES:
        yield _Choice(
            re.compile(schedule + _NUMBER),
            f"{schedule}N",
            lambda m, schedule=schedule: {"schedule": schedule, "virtual_stages": int(m[1])},  # type: ignore[misc]
        )
    for schedule in words.V_SCHEDULES:
        yield _word(schedule, schedule=schedule, virtual_stages=2)
    for method in words.CONTEXT_METHODS:
        yield _word(method, context_method=method)
    for recompute in words.RECOMPUTES[1:]:
        yield _word(recompute, recompute=recompute)
    yield _Choice(re.compile("ckpt" + _NUMBER), "ckptK", lambda m: {"recompute": f"ckpt{int(m[1])}"})
    for zero in words.ZEROS:
        yield _word(f"zero{zero}", zero=zero)
    for attention in words.ATTENTIONS:
        yield _word(attention, attention=attention)
    for norm in words.NORMS:
        yield _word(norm, norm=norm)
    yield _word("compile", compile=True)


_CHOICES = tuple(_choices())
_FACTOR = re.compile(f"({'|'.join(words.AXES)}){_NUMBER}")
# Words that would mean nothing without the axis; the value alone can't tell them from its defaults.
_NEEDS_AXIS = {"schedule": ("pp", "pipeline"), "context_method": ("cp", "context")}


def parse(label: str, left_out: Mapping[str, object]) -> Layout:
    """The layout that a label names, `left_out` for fields that it leaves out; InputError names the label."""
    if not isinstance(label, str):
        raise InputError(f"layout label {label!r} is not text; legal: for example fsdp8 or pp2-fsdp2-tp2+sp")
    shown = json.dumps(label if len(label) <= 120 else label[:117] + "...")
    label = label.strip()
    if odd := next((c for c in label if not "!" <= c <= "~"), None):
        raise InputError(
            f"layout label {shown}: {odd!a} has no place in a label; legal: lower-case letters, digits, - and +"
        )
    factors, *choices = label.split("+")
    problems: list[str] = []
    fields: dict[str, object] = {}
    _read(factors.split("-"), _factor, fields, problems)
    _read(choices, _choice, fields, problems)
    if not problems:
        for field, (axis, degree) in _NEEDS_AXIS.items():
            if field in fields and fields.get(degree, 1) == 1:
                problems.append(
                    f'"{fields[field]}" needs {axis} > 1, which is missing; legal: with {axis}2, or left out'
                )
    if not problems:
        try:
            return Layout(**{**left_out, **fields})  # type: ignore[arg-type]
        except InputError as error:
            problems.extend(error.problems)
    raise InputError(*(f"layout label {shown}: {problem}" for problem in problems))


def _read(
    tokens: list[str],
    read: Callable[[str], dict[str, object] | str],
    fields: dict[str, object],
    problems: list[str],
) -> None:
    """Add what the tokens set to `fields`; what is wrong with them to `problems`."""
    seen: dict[str, str] = {}
    for token in tokens:
        found = read(token)
        if isinstance(found, str):
            problems.append(found)
            continue
        field = next(iter(found))
        if field in seen:
            problems.append(_twice(seen[field], token))
        else:
            seen[field] = token
            fields.update(found)


def _twice(first: str, second: str) -> str:
    if first == second:
        return f'"{second}" is there twice; legal: once'
    return f'"{first}" and "{second}" cannot both hold; legal: one of the two'


def _factor(token: str) -> dict[str, object] | str:
    match = _FACTOR.fullmatch(token)
    if match:
        problem = _number_problem(token, match[2])
        return problem or {words.AXES[match[1]]: int(match[2])}
    if token in words.AXES:
        return f'factor "{token}" lacks its degree; legal: for example {token}2'
    if isinstance(_choice(token), dict):
        return f'"{token}" is a choice and follows a + sign; legal: ...+{token}'
    if not token:
        return "a factor is missing; legal: factors joined by single - signs, then choices, as in dp2-tp4+sp"
    return f'factor "{token[:40]}" is unknown; {words.nearest(token, [f"{axis}N" for axis in words.AXES])}'


def _choice(token: str) -> dict[str, object] | str:
    for choice in _CHOICES:
        match = choice.pattern.fullmatch(token)
        if match:
            problem = _number_problem(token, match[1]) if choice.pattern.groups else None
            return problem or choice.fields(match)
    factors = token.split("-")
    if all(_FACTOR.fullmatch(factor) for factor in factors):
        return f'"{token}" is a factor and stands before the choices; legal: as in fsdp2-tp2+sp'
    for choice in _CHOICES:
        if choice.shown == f"{token}N":
            return f'choice "{token}" lacks its number; legal: for example {token}2'
    if not token:
        return "a choice is missing after +; legal: one word after each + sign, as in fsdp8+mb2"
    return f'choice "{token[:40]}" is unknown; {words.nearest(token, [choice.shown for choice in _CHOICES])}'


def _number_problem(token: str, digits: str) -> str | None:
    if len(digits) > 9:
        return f'"{token[:20]}..." is outside what a layout can have; legal: numbers up to {words.LARGEST}'
    if int(digits) == 0:
        return f'"{token}" is below one; legal: {token[: -len(digits)]}1 or more'
    if digits[0] == "0":
        return f'"{token}" has a leading zero; legal: {token[: -len(digits)]}{int(digits)}'
    return None


def show(layout: Layout) -> str:
    """The canonical label: order pp-dp-fsdp-cp-tp, no ones, no defaults; all ones is fsdp1."""
    degrees = {axis: getattr(layout, field) for axis, field in words.AXES.items()}
    factors = [f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1]
    return "+".join(["-".join(factors) or "fsdp1", *_shown_choices(layout)])


def _shown_choices(layout: Layout) -> Iterator[str]:
    if layout.micro_batch > 1:
        yield f"mb{layout.micro_batch}"
    if layout.sequence_parallel:
        yield "sp"
    if layout.schedule in words.LOOPED_SCHEDULES:
        yield f"{layout.schedule}{layout.virtual_stages}"
    elif layout.schedule != "1f1b":
        yield layout.schedule
    if layout.context_method != "ring":
        yield layout.context_method
    if layout.recompute != "none":
        yield layout.recompute
    if layout.zero != default_zero(layout.pipeline):
        yield f"zero{layout.zero}"
    if layout.attention != "sdpa":
        yield layout.attention
    if layout.norm != "fused":
        yield layout.norm
    if layout.compile:
        yield "compile"
