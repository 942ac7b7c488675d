"""`--fix`: what the fields of a layout may be, such as `tensor<=4`, `micro_batch=1,2` or `recompute=none`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from torchlayout.errors import InputError
from torchlayout.layout import Layout, words
from torchlayout.layout.enumerate import allowed_values
from torchlayout.tables import shown

T = TypeVar("T")

SHORT = {**words.AXES, "mb": "micro_batch", "sp": "sequence_parallel"}
"""The words of a label stand for their fields."""
NUMBERS = (*words.AXES.values(), "micro_batch", "virtual_stages", "zero")
SWITCHES = {"true": True, "false": False}
_TEXT = re.compile(r"\s*([A-Za-z_]+)\s*(<=|>=|=)\s*(\S.*?)\s*")


@dataclass(frozen=True)
class Limit:
    """One `--fix`: a field with the values that it may take, or with the least and the most."""

    field: str
    values: tuple[object, ...] = ()
    least: int = 1
    most: int = words.LARGEST

    def allows(self, value: object) -> bool:
        """Whether the field may have this value."""
        if self.values:
            return value in self.values
        return isinstance(value, int) and self.least <= value <= self.most

    def __str__(self) -> str:
        if self.values:
            return f"{self.field}={','.join(str(value).lower() for value in self.values)}"
        return f"{self.field}<={self.most}" if self.least == 1 else f"{self.field}>={self.least}"


@dataclass(frozen=True)
class Limits:
    """All limits together; a field without any follows the conventions of the search."""

    limits: tuple[Limit, ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Limits:
        """What the texts of `--fix` say; raises InputError with a sentence for each wrong one."""
        limits, problems = [], []
        for text in texts:
            try:
                limits.append(_limit(text))
            except InputError as error:
                problems += [f"--fix {shown(text)}: {problem}" for problem in error.problems]
        if problems:
            raise InputError(*problems)
        return cls(tuple(limits))

    def of(self, field: str) -> tuple[Limit, ...]:
        """The limits of one field."""
        return tuple(limit for limit in self.limits if limit.field == field)

    def allows(self, field: str, value: object) -> bool:
        """Whether the field may have this value."""
        return all(limit.allows(value) for limit in self.of(field))

    def range(self, field: str, usual: Iterable[T], legal: Iterable[T] | None = None) -> tuple[T, ...]:
        """The values to search: the usual ones or, where a limit says otherwise, all legal ones that it allows.

        Without `legal` the limits name their values themselves.
        """
        limits = self.of(field)
        if not limits:
            return tuple(usual)
        named: Iterable[object] = next((limit.values for limit in limits if limit.values), ())
        candidates = named if legal is None and named else usual if legal is None else legal
        return tuple(value for value in candidates if self.allows(field, value))  # type: ignore[misc]

    def sentences(self) -> list[str]:
        """What each limit says."""
        return [str(limit) for limit in self.limits]

    def __str__(self) -> str:
        return ", ".join(self.sentences())


def _limit(text: str) -> Limit:
    match = _TEXT.fullmatch(text)
    if not match:
        raise InputError(
            "is no limit of a field; legal: FIELD=VALUE,..., FIELD<=NUMBER or FIELD>=NUMBER, such as tensor<=4"
        )
    name, sign, right = match.groups()
    field, names = SHORT.get(name, name), [entry.name for entry in fields(Layout)]
    if field not in names:
        raise InputError(f"{name} is no field of a layout; {words.nearest(name, [*names, *SHORT])}")
    values = tuple(_value(field, word.strip()) for word in right.split(","))
    allowed_values(field, values)
    if sign == "=":
        return Limit(field, values)
    if field not in NUMBERS or len(values) > 1:
        raise InputError(f"{sign} needs a field that is a number, and one number; legal: {field}=VALUE,...")
    number = int(str(values[0]))
    return Limit(field, least=number) if sign == ">=" else Limit(field, most=number)


def _value(field: str, word: str) -> object:
    if field in NUMBERS:
        if not re.fullmatch(r"[0-9]{1,9}", word):
            raise InputError(f"{field} = {shown(word)} is not a whole number; legal: 1 or more")
        return int(word)
    if field in ("sequence_parallel", "compile"):
        if word not in SWITCHES:
            raise InputError(f"{field} = {shown(word)} is neither true nor false")
        return SWITCHES[word]
    return "ckpt" if word == "ckpt1" else word
