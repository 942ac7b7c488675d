"""How far predictions are from measured runs, as residuals of a least-squares fit that outliers don't bend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchlayout.errors import InputError
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.measured.predict import Machines, peak_bytes_of, reserved_bytes_of, seconds_of
from torchlayout.plan.measured.runs import Run
from torchlayout.plan.memory.peak import GIB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TIME_SCALE, PEAK_SCALE = 0.03, 0.05
"""Errors of the logarithm that count as one standard deviation."""
VERDICT_SCALE_GIB = 2.0
"""Distance from the device's memory over which a verdict goes from even to clear."""


class Residuals:
    """Rows by what they tell: a step time; a peak of torch's allocator; or only whether the run fitted.

    Raises InputError for a row that can't be priced.
    """

    def __init__(self, rows: Sequence[Run], *, time: bool = True, memory: bool = True) -> None:
        well = [run for run in rows if run.status == "ok" and run.trusted]
        told = {id(run) for run in well if run.memory_gb is not None}
        self.timed = [run for run in well if time and run.step_seconds is not None]
        self.peaks = [run for run in well if memory and run.memory_gb is not None]
        self.verdicts = [run for run in rows if memory and id(run) not in told]
        machines = Machines(Calibration())
        for run in rows:
            try:
                peak_bytes_of(machines.of(run), run.job)
            except InputError as error:
                sentences = (f"{run.place}: {problem}; leave it out" for problem in error.problems)
                raise InputError(*sentences) from error

    def time_logs(self, calibration: Calibration) -> list[float]:
        """Logarithms of predicted over measured step times."""
        machines = Machines(calibration)
        return [math.log(seconds_of(machines.of(run), run.job) / (run.step_seconds or 1.0)) for run in self.timed]

    def time(self, calibration: Calibration) -> Array:
        """Residuals of step times."""
        import numpy as np

        return pseudo_huber(np.array(self.time_logs(calibration)) / TIME_SCALE)

    def memory(self, calibration: Calibration) -> Array:
        """Residuals of peaks, then of verdicts."""
        import numpy as np

        machines = Machines(calibration)
        logs = [
            math.log(reserved_bytes_of(machines.of(run), run.job) / (GIB * (run.memory_gb or 1.0)))
            for run in self.peaks
        ]
        over = [self._beyond_verdict(run, machines) for run in self.verdicts]
        # Twice the negative logarithm of a logistic likelihood is a square; far beyond it grows with the distance.
        verdicts = np.sqrt(2 * np.logaddexp(0.0, np.array(over)))
        return np.concatenate([pseudo_huber(np.array(logs) / PEAK_SCALE), verdicts])

    def _beyond_verdict(self, run: Run, machines: Machines) -> float:
        """How far memory is on the wrong side of the device's, in scales; negative on the right side."""
        over = peak_bytes_of(machines.of(run), run.job) / GIB - run.hardware.memory_gib
        return (over if run.status == "ok" else -over) / VERDICT_SCALE_GIB


def pseudo_huber(errors: Array) -> Array:
    """Errors whose squares are the pseudo-Huber loss: as they are near zero, with roots of themselves far from it."""
    import numpy as np

    sizes: Array = np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
    signed: Array = np.copysign(sizes, errors)
    return signed
