"""Rows of a CSV file whose cells are read one by one; what is wrong with one is a sentence that names it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchlayout.errors import InputError
from torchlayout.files import read_text
from torchlayout.layout.words import LARGEST, nearest
from torchlayout.tables import shown

LARGEST_NUMBER = 1e15
SWITCHES = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}


@dataclass(frozen=True, eq=False)
class Cells:
    """One row with where it stands; raises InputError with the file, line, column, value and what would be legal."""

    place: str
    row: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell that can't be empty."""
        if value := self.row[column]:
            return value
        raise self.wrong(column, "is empty; legal: a text")

    def whole(self, column: str) -> int:
        """A whole number of 1 or more."""
        value = self.row[column]
        # int() also takes signs, blanks, underscores and other alphabets' digits.
        if value.isascii() and value.isdigit() and len(value) <= 9 and int(value) >= 1:
            return int(value)
        raise self.wrong(column, f"is not a whole number; legal: 1 to {LARGEST}")

    def number(self, column: str) -> float | None:
        """A number above 0; None where the cell is empty."""
        value = self.row[column]
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if 0 < number <= LARGEST_NUMBER:
            return number
        raise self.wrong(column, "is not a number; legal: a decimal number above 0, or nothing")

    def switch(self, column: str) -> bool:
        """True or False."""
        value = self.row[column]
        if value not in SWITCHES:
            raise self.wrong(column, "is neither true nor false; legal: True, False")
        return SWITCHES[value]

    def word(self, column: str, legal: Iterable[str]) -> str:
        """One of some words."""
        words, value = tuple(legal), self.row[column]
        if value not in words:
            raise self.wrong(column, f"is unknown; {nearest(value, (word or '(empty)' for word in words))}")
        return value

    def wrong(self, column: str, rule: str) -> InputError:
        """What is wrong with a cell."""
        return InputError(f"{self.place}: {column} = {shown(self.row[column])} {rule}")


def read_cells(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> Iterator[Cells]:
    """The rows of a CSV file with a header; columns in `optional` that it lacks are empty, unknown ones are kept.

    Raises InputError where the file can't be read, is no CSV, or lacks a column.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check(path, header, tuple(required))
        empty = dict.fromkeys(optional, "")
        for cells in reader:
            place = f"{path} line {reader.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(f"{place} has {len(cells)} cells; legal: {len(header)}, as the first line has")
            yield Cells(place, empty | dict(zip(header, map(str.strip, cells), strict=True)))
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num} is not CSV: {error}") from error


def _check(path: Path, header: list[str], required: tuple[str, ...]) -> None:
    if not any(header):
        raise InputError(f"{path} line 1 has no columns; legal: {', '.join(required)}")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise InputError(f"{path} line 1 has the column {', '.join(map(shown, twice))} twice; legal: once")
    if missing := [name for name in required if name not in header]:
        raise InputError(f"{path} line 1 lacks the column {', '.join(missing)}; it has: {', '.join(header)}")
