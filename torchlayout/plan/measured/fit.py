"""Fits the numbers of a calibration to measured runs: robust least squares with a log-normal prior for each number."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torchlayout.errors import InputError
from torchlayout.files import write_atomically
from torchlayout.layout.words import nearest
from torchlayout.plan.calibration import PARTS, Calibration, replaced, spreads, values
from torchlayout.plan.measured.metrics import robust_spread
from torchlayout.plan.measured.residuals import Residuals
from torchlayout.plan.measured.runs import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MEMORY = "memory."
"""How the names of numbers begin that move memory alone; all others move time alone."""
MOST_STEPS = 40
DIFFERENCE = 1e-3
"""Step of the finite differences, in standard deviations of a number's prior."""
WEAK, UNTOUCHED = 0.8, 0.995
"""Spread after the fit, as part of the prior's, above which the rows say little of a number, or nothing."""
LEAST_SPREAD, MOST_SPREAD = 1e-3, 0.99
DIGITS = 6


@dataclass(frozen=True)
class Number:
    """A number before and after a fit."""

    name: str
    prior: float
    spread: float
    """Standard deviation of its logarithm before the fit."""
    fitted: float
    left: float
    """Part of that which is left after the fit; 1: the rows say nothing."""

    @property
    def moved(self) -> float:
        """How far it moved, in standard deviations of its prior."""
        return math.log(self.fitted / self.prior) / self.spread

    @property
    def identified(self) -> Literal["yes", "weakly", "no"]:
        """Whether the rows tell it, or whether it mostly or wholly is its prior."""
        return "yes" if self.left <= WEAK else "weakly" if self.left <= UNTOUCHED else "no"


@dataclass(frozen=True)
class Fit:
    """A fitted calibration, its numbers, and the rows of each kind that it was fitted on."""

    calibration: Calibration
    numbers: tuple[Number, ...]
    devices: tuple[str, ...]
    rows: int
    time_rows: int
    peak_rows: int
    verdict_rows: int


def free_numbers(text: str) -> tuple[str, ...]:
    """The numbers that words parted by commas name: all, time, memory, a table such as links, or a number's name."""
    known = tuple(spreads())
    kinds = {
        "all": known,
        "time": tuple(name for name in known if not name.startswith(MEMORY)),
        **{part: tuple(name for name in known if name.startswith(f"{part}.")) for part in PARTS},
        **{name: (name,) for name in known},
    }
    chosen: dict[str, None] = {}
    for word in text.split(","):
        if word.strip() not in kinds:
            raise InputError(f"--free {word.strip()} names no number; {nearest(word.strip(), kinds)}")
        chosen |= dict.fromkeys(kinds[word.strip()])
    return tuple(chosen)


def usable(runs: Sequence[Run]) -> list[Run]:
    """The rows that a fit takes: with an outcome, all of one stack; of untrusted ones the verdict alone counts.

    Raises InputError where none is left or where they are of several stacks.
    """
    rows = [run for run in runs if run.status != "error"]
    if not rows:
        raise InputError(f"none of {len(runs)} rows can be fitted on: status is error; give others")
    stacks = sorted({run.software.name for run in rows})
    if len(stacks) > 1:
        raise InputError(
            f"rows are of {len(stacks)} stacks ({', '.join(stacks)}) and a calibration is of one; choose by --only"
        )
    return rows


def fit(rows: Sequence[Run], free: Sequence[str], base: Calibration | None = None) -> Fit:
    """The numbers in `free` fitted to usable rows, starting from a base whose other numbers stay as they are.

    Residuals are log(predicted / measured) over 3% for step times and over 5% for peaks, through a pseudo-Huber loss
    (see Residuals), beside log(number / prior) over the prior's spread. Raises InputError where scipy is missing or
    where a row can't be priced.
    """
    base = Calibration() if base is None else base
    problem = _Problem(rows, tuple(free), base)
    place, jacobian = problem.solve()
    numbers = problem.numbers(place, jacobian)
    fitted = replaced(base, {number.name: number.fitted for number in numbers})
    logs = problem.residuals.time_logs(fitted)
    most_common = Counter(run.hardware.name for run in rows).most_common(1)[0][0]
    calibration = fitted.model_copy(
        update={
            "software": rows[0].software.name,
            "hardware": most_common,
            "time_spread": _spread(logs) if logs else base.time_spread,
        }
    )
    kinds = problem.residuals
    used = list(dict.fromkeys([*kinds.timed, *kinds.peaks, *kinds.verdicts]))
    devices = tuple(dict.fromkeys(run.hardware.name for run in used))
    return Fit(calibration, numbers, devices, len(used), len(kinds.timed), len(kinds.peaks), len(kinds.verdicts))


def write(fit: Fit, path: Path, name: str, files: Sequence[str], words: Sequence[str]) -> str:
    """Writes the calibration under a name, with the files, rows and words of the command; returns the path as text."""
    import tomli_w

    devices = f" on {', '.join(fit.devices)}" if len(fit.devices) > 1 else ""
    rows = f"{fit.rows} rows{devices} ({fit.time_rows} step times, {fit.peak_rows} peaks, {fit.verdict_rows} verdicts)"
    fitted_on = f"{', '.join(files)}, {rows}: {shlex.join(['torchlayout', *words])}"
    if (base := fit.calibration).name != Calibration().name:
        fitted_on += f"; other numbers from {base.name}: {base.fitted_on}"
    facts = {"name": name, "fitted_on": fitted_on}
    calibration = fit.calibration.model_copy(update=facts)
    write_atomically(path, tomli_w.dumps(calibration.model_dump()))
    return str(path)


class _Problem:
    """Least squares over the logarithms of the free numbers, in standard deviations of their priors."""

    def __init__(self, rows: Sequence[Run], free: tuple[str, ...], base: Calibration) -> None:
        self.free, self.base = free, base
        self.priors, self.spreads = values(Calibration()), spreads()
        of_memory = [name.startswith(MEMORY) for name in free]
        self.residuals = Residuals(rows, time=not all(of_memory), memory=any(of_memory))
        self._latest: tuple[tuple[float, ...], Array, Array] | None = None

    def calibration(self, place: Sequence[float]) -> Calibration:
        """The calibration at a place."""
        moves = zip(self.free, place, strict=True)
        return replaced(self.base, {name: self.priors[name] * math.exp(x * self.spreads[name]) for name, x in moves})

    def numbers(self, place: Sequence[float], jacobian: Array) -> tuple[Number, ...]:
        """The free numbers at a place, as they are written, with what is left of their spreads."""
        import numpy as np

        left = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
        fitted = {name: _rounded(value) for name, value in values(self.calibration(place)).items()}
        return tuple(
            Number(name, self.priors[name], self.spreads[name], fitted[name], min(1.0, float(part)))
            for name, part in zip(self.free, left, strict=True)
        )

    def solve(self) -> tuple[list[float], Array]:
        """(place, Jacobian there) of least squares."""
        try:
            from scipy.optimize import least_squares
        except ImportError as error:
            raise InputError("plan fit needs scipy, which is not installed; pip install torchlayout[plan]") from error
        before = values(self.base)
        start = [math.log(before[name] / self.priors[name]) / self.spreads[name] for name in self.free]
        found = least_squares(self._residuals, start, self._jacobian, method="trf", max_nfev=MOST_STEPS, ftol=1e-4)
        return found.x.tolist(), found.jac

    def _residuals(self, place: Array) -> Array:
        import numpy as np

        calibration = self.calibration(place.tolist())
        time, memory = self.residuals.time(calibration), self.residuals.memory(calibration)
        self._latest = (tuple(place.tolist()), time, memory)
        return np.concatenate([time, memory, place])

    def _jacobian(self, place: Array) -> Array:
        """By differences; a number moves memory or time alone, so half is never priced."""
        import numpy as np

        if self._latest is None or self._latest[0] != tuple(place.tolist()):
            self._residuals(place)
        assert self._latest is not None
        _, time, memory = self._latest
        columns = []
        for index, name in enumerate(self.free):
            moved = place.copy()
            moved[index] += DIFFERENCE
            calibration = self.calibration(moved.tolist())
            slope_time, slope_memory = np.zeros_like(time), np.zeros_like(memory)
            if name.startswith(MEMORY):
                slope_memory = (self.residuals.memory(calibration) - memory) / DIFFERENCE
            else:
                slope_time = (self.residuals.time(calibration) - time) / DIFFERENCE
            unit = np.zeros(len(self.free))
            unit[index] = 1.0
            columns.append(np.concatenate([slope_time, slope_memory, unit]))
        return np.stack(columns, axis=1)


def _spread(logs: Sequence[float]) -> float:
    return _rounded(min(max(robust_spread(logs), LEAST_SPREAD), MOST_SPREAD))


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
