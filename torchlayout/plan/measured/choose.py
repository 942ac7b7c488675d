"""Which measured runs count: `--only COLUMN=VALUE,VALUE` and `--leave-out "COLUMN=VALUE COLUMN=VALUE"`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torchlayout.errors import InputError
from torchlayout.layout.words import nearest
from torchlayout.plan.measured.runs import Run
from torchlayout.tables import shown

SHOWN_VALUES = 12


@dataclass(frozen=True)
class Rule:
    """Columns with the values each may have; `*` in a value stands for anything; a run has to meet all of them."""

    text: str
    wanted: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def parse(cls, text: str, option: str) -> Rule:
        """The rule that an option states: columns parted by blanks, values of a column by commas."""
        parts = re.split(r"\s+(?=\w+=)", text.strip())
        if not all(re.match(r"\w+=", part) for part in parts):
            raise InputError(f"{option} {shown(text)} is no rule; legal: COLUMN=VALUE,VALUE, more after a blank")
        pairs = (part.split("=", 1) for part in parts)
        return cls(text, tuple((column, tuple(v.strip() for v in values.split(","))) for column, values in pairs))

    def matches(self, run: Run) -> bool:
        """Whether a run has one of the values in every column."""
        return all(any(fnmatchcase(run.cells[column], value) for value in values) for column, values in self.wanted)


def choose(runs: Sequence[Run], only: Sequence[str] = (), leave_out: Sequence[str] = ()) -> list[Run]:
    """The runs that meet every rule of `only` and none of `leave_out`.

    Raises InputError for a rule that is none, names no column, or names a value that no run has.
    """
    if not runs:
        raise InputError("the files have no rows; give files of measured runs")
    wanted = [_checked(rule, "--only", runs) for rule in only]
    unwanted = [_checked(rule, "--leave-out", runs) for rule in leave_out]
    chosen = [
        run
        for run in runs
        if all(rule.matches(run) for rule in wanted) and not any(rule.matches(run) for rule in unwanted)
    ]
    if not chosen:
        raise InputError(f"--only and --leave-out leave none of {len(runs)} rows; give rules that leave some")
    return chosen


def _checked(text: str, option: str, runs: Sequence[Run]) -> Rule:
    rule = Rule.parse(text, option)
    for column, values in rule.wanted:
        check_column(column, option, runs)
        found = sorted({run.cells[column] for run in runs})
        for value in values:
            if not any(fnmatchcase(one, value) for one in found):
                legal = ", ".join(found[:SHOWN_VALUES]) + (", ..." if len(found) > SHOWN_VALUES else "")
                raise InputError(f"{option} {column}={value} is met by no row; rows have: {legal}")
    return rule


def check_column(column: str, option: str, runs: Sequence[Run]) -> None:
    """Raises InputError where not every run has the column."""
    columns = [name for name in runs[0].cells if all(name in run.cells for run in runs)] if runs else []
    if column not in columns:
        raise InputError(f"{option} {column}: no such column in every file; {nearest(column, columns)}")
