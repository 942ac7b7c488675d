"""Sets of moments as sorted, disjoint intervals: int64 arrays [number, 2] of nanoseconds, start and end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.int64]
EMPTY: Intervals = np.zeros((0, 2), dtype=np.int64)


def union(*parts: Intervals) -> Intervals:
    """The moments that are in any of the intervals, which may overlap and come in any order."""
    given = [part for part in parts if len(part)]
    if not given:
        return EMPTY
    spans = np.concatenate(given)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(spans[:, 1])
    opens = np.ones(len(spans), dtype=bool)
    opens[1:] = spans[1:, 0] > reached[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(spans)) - 1
    merged = np.stack([spans[first, 0], reached[last]], axis=1)
    return merged[merged[:, 1] > merged[:, 0]]


def intersect(one: Intervals, other: Intervals) -> Intervals:
    """The moments in both; each must be disjoint."""
    if not len(one) or not len(other):
        return EMPTY
    edges = np.concatenate([one[:, 0], other[:, 0], one[:, 1], other[:, 1]])
    steps = np.repeat(np.array([1, -1]), len(one) + len(other))
    # Ends before starts at the same moment, so that touching intervals share nothing.
    order = np.lexsort((steps, edges))
    edges, depth = edges[order], np.cumsum(steps[order])
    inside = np.flatnonzero(depth[:-1] == 2)
    found = np.stack([edges[inside], edges[inside + 1]], axis=1)
    return found[found[:, 1] > found[:, 0]]


def subtract(one: Intervals, other: Intervals) -> Intervals:
    """The moments of `one` that are not in `other`; each must be disjoint."""
    if not len(one) or not len(other):
        return one
    low, high = min(one[0, 0], other[0, 0]), max(one[-1, 1], other[-1, 1])
    starts, ends = np.append(low, other[:, 1]), np.append(other[:, 0], high)
    gaps = np.stack([starts, ends], axis=1)
    return intersect(one, gaps[gaps[:, 1] > gaps[:, 0]])


def length(spans: Intervals) -> int:
    """Nanoseconds in disjoint intervals."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def clip(spans: Intervals, start: int, end: int) -> Intervals:
    """What lies between two moments, of intervals that may overlap."""
    cut = np.clip(spans, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def intervals(pairs: Iterable[Any]) -> Intervals:
    """An array from (start, end) pairs, as they are."""
    spans = np.array([(start, end) for start, end in pairs], dtype=np.int64)
    return spans.reshape(-1, 2)


def inside(moments: NDArray[np.int64], spans: Intervals) -> NDArray[np.bool_]:
    """Which moments lie in disjoint intervals."""
    if not len(spans):
        return np.zeros(len(moments), dtype=bool)
    at = np.searchsorted(spans[:, 0], moments, side="right") - 1
    found: NDArray[np.bool_] = (at >= 0) & (moments < spans[np.maximum(at, 0), 1])
    return found
