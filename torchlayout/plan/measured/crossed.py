"""Fits that leave out one value of a column in turn, with their error on what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchlayout.errors import InputError
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.measured.accuracy import Method, method
from torchlayout.plan.measured.choose import check_column
from torchlayout.plan.measured.confusion import Confusion, peak_errors
from torchlayout.plan.measured.fit import fit
from torchlayout.plan.measured.metrics import Errors
from torchlayout.plan.measured.predict import Machines, predict
from torchlayout.plan.measured.runs import Run


@dataclass(frozen=True)
class Fold:
    """What a fit without a value says of the rows that have it."""

    value: str
    fitted_rows: int
    method: Method
    memory: Confusion | None
    peak: Errors | None


def crossed(
    rows: Sequence[Run], column: str, free: Sequence[str], base: Calibration | None = None, margin_gib: float = 4.0
) -> Iterator[Fold]:
    """A fold a value of the column, in the order of the rows; memory verdicts are without a margin.

    Raises InputError where the column is none or has one value only.
    """
    check_column(column, "--cross", rows)
    found = list(dict.fromkeys(run.cells[column] for run in rows))
    if len(found) < 2:
        raise InputError(f"--cross {column}: all rows have {found[0]}; give a column of several values")
    for value in found:
        rest = [run for run in rows if run.cells[column] != value]
        calibration = fit(rest, free, base).calibration
        predictions, _ = predict([run for run in rows if run.cells[column] == value], Machines(calibration))
        yield Fold(
            value,
            len(rest),
            method(predictions, margin_gib),
            Confusion.of(predictions, 0.0),
            peak_errors(predictions),
        )
