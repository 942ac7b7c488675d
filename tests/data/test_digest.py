"""The digest of a batch: the same however the batch is cut, another one when anything in it differs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchlayout.data.digest import batch_digest


def splitmix(x: int) -> int:
    """The finaliser of splitmix64 on Python integers, as published."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


@pytest.fixture
def batch() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 10**13, 4)
    positions = np.broadcast_to(np.arange(6), (4, 6)).copy()
    labels = rng.integers(0, 257, (4, 6))
    labels[1, 2] = -100
    return [samples, positions, rng.integers(0, 257, (4, 6)), labels]


def test_it_is_the_sum_of_hashes_of_all_tokens(batch: list[np.ndarray]) -> None:
    samples, *parts = batch
    golden, total = 0x9E3779B97F4A7C15, 0
    for row, sample in enumerate(samples.tolist()):
        for column in range(6):
            hashed = splitmix((sample + golden) % 2**64)
            for part in parts:
                hashed = splitmix(((hashed ^ (int(part[row, column]) % 2**64)) + golden) % 2**64)
            total += hashed
    assert batch_digest(*batch) == total % 2**64


def test_tensors_and_arrays_have_one_digest(batch: list[np.ndarray]) -> None:
    assert batch_digest(*map(torch.from_numpy, batch)) == batch_digest(*batch)


def test_parts_of_a_batch_add_up_however_it_is_cut(batch: list[np.ndarray]) -> None:
    whole = batch_digest(*batch)
    by_rows = sum(batch_digest(*(part[rows] for part in batch)) for rows in (slice(0, 1), slice(1, 4)))
    columns = ([0, 5], [1, 4], [2, 3])  # as context ranks with load balancing take them
    by_columns = sum(batch_digest(batch[0], *(part[:, c] for part in batch[1:])) for c in columns)
    assert by_rows % 2**64 == whole
    assert by_columns % 2**64 == whole


@pytest.mark.parametrize("part", range(4))
def test_every_single_difference_shows(batch: list[np.ndarray], part: int) -> None:
    whole = batch_digest(*batch)
    batch[part].flat[1] += 1
    assert batch_digest(*batch) != whole


def test_swapped_tokens_samples_or_shifted_labels_show(batch: list[np.ndarray]) -> None:
    samples, positions, tokens, labels = batch
    variants = [
        batch,
        [samples, positions, tokens[:, ::-1], labels],
        [samples, positions, labels, tokens],
        [samples[::-1], positions, tokens, labels],
        [samples, positions, tokens, np.roll(labels, 1, axis=1)],
        [samples, positions[:, ::-1], tokens, labels],
    ]
    assert len({batch_digest(*variant) for variant in variants}) == len(variants)


def test_zeros_are_told_apart_by_their_number() -> None:
    zeros = np.zeros((1, 4), dtype=np.int64)
    digests = {batch_digest(np.zeros(1, dtype=np.int64), *(zeros[:, :n] for _ in range(3))) for n in range(5)}
    assert len(digests) == 5
