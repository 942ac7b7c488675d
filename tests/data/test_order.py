"""The global order: a permutation in every epoch, another one in each, and fast at any size."""

from __future__ import annotations

import math
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlayout.data.order import Order
from torchlayout.errors import InputError


def epochs(order: Order, first: int, count: int) -> np.ndarray:
    """`count` epochs from `first` on, [epoch, sample]."""
    return order.at(np.arange(first * order.samples, (first + count) * order.samples)).reshape(count, -1)


@pytest.mark.parametrize("samples", [*range(1, 70), 127, 128, 1000, 1023, 65_537])
def test_every_epoch_visits_every_sample_once(samples: int) -> None:
    for epoch in epochs(Order(samples, seed=5), 0, 3):
        assert np.array_equal(np.sort(epoch), np.arange(samples))


@given(samples=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), first=st.integers(0, 2**20))
@settings(max_examples=60, deadline=None)
def test_any_size_seed_and_epoch_gives_a_permutation(samples: int, seed: int, first: int) -> None:
    (epoch,) = epochs(Order(samples, seed), first, 1)
    assert np.array_equal(np.sort(epoch), np.arange(samples))


def test_no_two_epochs_and_no_two_seeds_share_an_order() -> None:
    seen = {epoch.tobytes() for seed in range(20) for epoch in epochs(Order(50, seed), 0, 20)}
    assert len(seen) == 20 * 20


@pytest.mark.parametrize("samples", [2, 3, 4, 5, 6])
def test_all_permutations_occur_equally_often(samples: int) -> None:
    permutations, expected = math.factorial(samples), 100
    drawn = epochs(Order(samples, seed=9), 0, expected * permutations)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == permutations
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = permutations - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5  # mean + 5 standard deviations


@pytest.mark.parametrize("samples", [9_973, 10_000, 2**14])
def test_the_sample_says_nothing_about_its_position(samples: int) -> None:
    first, second = epochs(Order(samples, seed=3), 0, 2).astype(float)
    limit = 5 / samples**0.5  # five standard deviations of a correlation of independent numbers
    assert abs(np.corrcoef(np.arange(samples), first)[0, 1]) < limit
    assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < limit
    assert (np.diff(first) == 1).sum() < 10  # neighbours stay neighbours once in an epoch, on average


def test_low_bits_are_scattered_too() -> None:
    (epoch,) = epochs(Order(2**14, seed=1), 0, 1)
    parity = epoch % 2
    for period in (2, 4, 128):
        share = parity[::period].mean()
        assert abs(share - 0.5) < 5 * 0.5 / (2**14 / period) ** 0.5


def test_ten_trillion_samples_take_constant_memory_and_little_time() -> None:
    order = Order(10**13, seed=1)
    positions = np.random.default_rng(0).integers(0, 3 * 10**13, 20_000)
    order.at(positions)
    tracemalloc.start()
    started = time.process_time()
    samples = order.at(positions)
    seconds = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds / len(positions) < 5e-6
    assert peak < 40 * positions.nbytes
    assert samples.min() >= 0
    assert samples.max() < 10**13
    assert len(np.unique(order.at(np.arange(200_000)))) == 200_000


def test_the_order_is_a_stated_one() -> None:
    # Written down once: a change here would silently reshuffle every run that is resumed.
    assert Order(1000, seed=1234).at(np.arange(998, 1004)).tolist() == [443, 389, 312, 56, 429, 619]
    far = Order(10**13, seed=1234).at(np.array([0, 1, 10**13]))
    assert far.tolist() == [5729643340101, 5609718508474, 2973375936336]


def test_a_batch_across_epochs_equals_its_single_positions() -> None:
    order = Order(7, seed=2)
    positions = np.arange(40)
    assert order.at(positions).tolist() == [int(order.at(np.array([p]))[0]) for p in positions]
    assert order.at(positions.reshape(8, 5)).tolist() == order.at(positions).reshape(8, 5).tolist()


def test_without_shuffling_samples_come_in_their_order() -> None:
    assert Order(3, seed=2, shuffle=False).at(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="there are 0"):
        Order(0, seed=1)
    with pytest.raises(ValueError, match="start at 0"):
        Order(3, seed=1).at(np.array([-1]))
