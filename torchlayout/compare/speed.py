"""How fast: figures of one run, their spread over repeats, and a ratio with its confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST_REPEATS = 3
"""With fewer the spread between runs is not known, and no interval is given."""
RESAMPLES = 4000
CONFIDENCE = 0.95

Step = Mapping[str, Any]


@dataclass(frozen=True)
class RunSpeed:
    """One run after its warm-up: medians over its steps; memory of the worst rank, in all steps."""

    step_seconds: float
    tokens_per_second: float
    tokens_per_second_per_device: float
    mfu: float | None
    hfu: float | None
    peak_memory_bytes: int
    peak_memory_rank: int
    data_seconds_fraction: float


@dataclass(frozen=True)
class Spread:
    """Median, least and most over the repeats."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """Speed against a baseline, above 1 is faster; the ends of the 95% interval where there are enough repeats."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def difference_shown(self) -> bool | None:
        """Whether the interval leaves out 1; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1 <= self.high


def run_speed(steps: Sequence[Step], warmup_steps: int, last_step: int | None = None) -> RunSpeed | None:
    """The figures of a run from the records of its steps; None where none of those that count was done.

    last_step: what comes after it does not count, neither its time nor its memory.
    """
    steps = [step for step in steps if last_step is None or step["step"] <= last_step]
    measured = [step for step in steps if step["step"] > warmup_steps]
    if not measured:
        return None
    worst = max(steps, key=lambda step: step["peak_memory_bytes"])
    by_rank = worst["peak_memory_bytes_by_rank"]
    return RunSpeed(
        step_seconds=_median(measured, "seconds"),
        tokens_per_second=_median(measured, "tokens_per_second"),
        tokens_per_second_per_device=_median(measured, "tokens_per_second_per_device"),
        mfu=_median_or_none(measured, "mfu"),
        hfu=_median_or_none(measured, "hfu"),
        peak_memory_bytes=worst["peak_memory_bytes"],
        peak_memory_rank=by_rank.index(max(by_rank)),
        data_seconds_fraction=sum(step["data_seconds"] for step in measured)
        / max(sum(step["seconds"] for step in measured), 1e-12),
    )


def spread(values: Iterable[float]) -> Spread:
    """The spread of one figure over the repeats, of which there is at least one."""
    known = sorted(values)
    return Spread(statistics.median(known), known[0], known[-1])


def ratio(baseline: Mapping[int, float], layout: Mapping[int, float]) -> Ratio:
    """How many times as fast a layout is as the baseline, from step times by repeat.

    Repeats that both have are compared pair by pair: they ran one after the other, so that a drift of the machine
    cancels. The value is the geometric mean of their ratios.
    """
    common = sorted(baseline.keys() & layout.keys())
    if not common:
        return Ratio(statistics.median(baseline.values()) / statistics.median(layout.values()))
    logs = np.log([baseline[repeat] / layout[repeat] for repeat in common])
    if len(common) < FEWEST_REPEATS:
        return Ratio(math.exp(logs.mean()))
    low, high = interval(logs)
    return Ratio(math.exp(logs.mean()), math.exp(low), math.exp(high))


def interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """A confidence interval of the mean by a smoothed, studentized bootstrap; the same values give the same one.

    A plain percentile bootstrap of three values is the range of three values, which holds the mean in 75% of all
    cases and not in 95%. Studentized (Efron and Tibshirani 1993, chapter 12.5) it has the width of Student's t. Without
    smoothing, resamples of few values are often all the same value and have no spread to divide by.
    """
    count, mean, deviation = len(values), float(values.mean()), float(values.std(ddof=1))
    if deviation <= 1e-12 * max(1.0, abs(mean)):
        return mean, mean
    generator = np.random.default_rng(seed)
    drawn = generator.choice(values, (RESAMPLES, count))
    drawn += generator.normal(0.0, deviation / math.sqrt(count), drawn.shape)
    studentized = (drawn.mean(1) - mean) / (drawn.std(1, ddof=1) / math.sqrt(count))
    tail = (1 - CONFIDENCE) / 2
    lowest, highest = np.quantile(studentized, [tail, 1 - tail])
    error = deviation / math.sqrt(count)
    return mean - float(highest) * error, mean - float(lowest) * error


def _median(steps: Sequence[Step], key: str) -> float:
    return float(statistics.median(step[key] for step in steps))


def _median_or_none(steps: Sequence[Step], key: str) -> float | None:
    known = [step[key] for step in steps if step.get(key) is not None]
    return float(statistics.median(known)) if known else None
