"""Plain statistics of predictions: errors, quantiles, rank correlation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from torchlayout.tables import Section

NORMAL = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which a part of the values lies, between neighbours by a straight line."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in ascending order, from 1; equal values share the mean of their places."""
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            places[index] = (start + 1 + end) / 2
        start = end
    return places


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation; None below three values or where one side is constant."""
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return statistics.correlation(ranks(first), ranks(second))


def robust_spread(logs: Sequence[float]) -> float:
    """Standard deviation around zero as the median absolute value tells it."""
    return NORMAL * statistics.median(abs(value) for value in logs) if logs else 0.0


class Errors(Section):
    """Relative errors |predicted / measured - 1| of some predictions."""

    rows: int
    """How many predictions."""
    median: float
    """Median error."""
    p90: float
    """Error that nine tenths stay below."""
    mean: float
    """Mean error."""
    worst: float
    """Largest error."""
    bias: float
    """Median of predicted / measured - 1."""

    @classmethod
    def of(cls, predicted: Sequence[float], measured: Sequence[float]) -> Errors | None:
        """The errors of predictions; None without any."""
        if not predicted:
            return None
        signed = [mine / theirs - 1 for mine, theirs in zip(predicted, measured, strict=True)]
        sizes = [abs(error) for error in signed]
        return cls(
            rows=len(sizes),
            median=statistics.median(sizes),
            p90=quantile(sizes, 0.9),
            mean=statistics.fmean(sizes),
            worst=max(sizes),
            bias=statistics.median(signed),
        )
