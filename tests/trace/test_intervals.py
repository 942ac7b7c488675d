"""Sets of moments, held against sets of integers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchlayout.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    inside,
    intersect,
    intervals,
    length,
    subtract,
    union,
)

SPAN = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
SPANS = st.lists(SPAN, max_size=12).map(intervals)


def moments(spans: Intervals) -> set[int]:
    """The nanoseconds of intervals, each named by its start."""
    return {moment for start, end in spans.tolist() for moment in range(start, end)}


def is_canonical(spans: Intervals) -> bool:
    """Sorted, disjoint, none empty and none that touch."""
    flat = spans.ravel().tolist()
    return all(one < other for one, other in pairwise(flat))


@given(SPANS, SPANS)
def test_a_union_holds_what_is_in_either(one: Intervals, other: Intervals) -> None:
    found = union(one, other)
    assert moments(found) == moments(one) | moments(other)
    assert is_canonical(found)
    assert length(found) == len(moments(found))


@given(SPANS, SPANS)
def test_an_intersection_holds_what_is_in_both(one: Intervals, other: Intervals) -> None:
    found = intersect(union(one), union(other))
    assert moments(found) == moments(one) & moments(other)
    assert is_canonical(found)


@given(SPANS, SPANS)
def test_a_difference_holds_what_is_only_in_the_first(one: Intervals, other: Intervals) -> None:
    found = subtract(union(one), union(other))
    assert moments(found) == moments(one) - moments(other)
    assert is_canonical(found)


@given(SPANS, st.integers(0, 50), st.integers(0, 50))
def test_clipping_keeps_what_lies_between(spans: Intervals, start: int, length: int) -> None:
    end = start + length
    assert moments(clip(spans, start, end)) == moments(spans) & set(range(start, end))


@given(SPANS, st.lists(st.integers(-5, 60), max_size=10))
def test_inside_says_which_moments_are_held(spans: Intervals, asked: list[int]) -> None:
    found = inside(np.array(asked, dtype=np.int64), union(spans))
    assert found.tolist() == [moment in moments(spans) for moment in asked]


def test_nothing_is_a_set_too() -> None:
    some = intervals([(1, 3)])
    for empty in (EMPTY, intervals([]), union(), union(EMPTY)):
        assert empty.shape == (0, 2)
        assert length(empty) == 0
        assert intersect(some, empty).shape == intersect(empty, some).shape == (0, 2)
        assert subtract(some, empty).tolist() == [[1, 3]]
        assert len(subtract(empty, some)) == 0


def test_intervals_that_touch_are_kept_apart_by_an_intersection() -> None:
    """The timeline cuts at the border of two micro-batches."""
    assert intersect(intervals([(0, 10)]), intervals([(0, 5), (5, 10)])).tolist() == [[0, 5], [5, 10]]
