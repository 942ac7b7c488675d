"""The global order of the samples: a function of (seed, epoch, index) in constant memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchlayout.data.mix import GOLDEN, mix, signed
from torchlayout.errors import InputError

_SMALL = 2**16  # below it a Feistel network needs more rounds before all permutations are equally likely
_ROUNDS, _SMALL_ROUNDS = 8, 24
_LARGEST = 2**62  # leaves a bit of int64 for the sum of two parts


@dataclass(frozen=True)
class Order:
    """The endless order in which `samples` samples are visited: each epoch is a keyed permutation of all of them.

    The permutation is a Feistel network over a x b >= samples with a, b near the square root (alternating halves,
    addition modulo a or b: Black and Rogaway 2002), so that nearly no index needs a second walk.
    Raises InputError when there is no sample.
    """

    samples: int
    seed: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= _LARGEST:
            raise InputError(f"an order needs between 1 and 2^62 samples; there are {self.samples}")

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample numbers, int64 of the same shape, at `positions` (int64, >= 0) of the endless order."""
        positions = np.asarray(positions, dtype=np.int64)
        if positions.size and positions.min() < 0:
            raise ValueError("positions in the order start at 0")
        epochs, index = np.divmod(positions.reshape(-1), self.samples)
        if self.shuffle:
            seed = mix(np.array([signed(self.seed)]) + GOLDEN)
            keys = mix(epochs + seed)
            index = self._permuted(index, keys)
            beyond = np.flatnonzero(index >= self.samples)
            while beyond.size:  # walk the cycle until it is back inside
                index[beyond] = self._permuted(index[beyond], keys[beyond])
                beyond = beyond[index[beyond] >= self.samples]
        return index.reshape(positions.shape)

    def _permuted(self, index: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """A permutation of [0, a x b) that `keys` chooses for each index by itself."""
        rows = math.isqrt(self.samples - 1) + 1
        columns = -(-self.samples // rows)
        columns += columns % 2  # shifts of two odd sizes would give even permutations only
        left: NDArray[np.int64] = index % rows
        right: NDArray[np.int64] = index // rows
        for turn in range(_ROUNDS if self.samples > _SMALL else _SMALL_ROUNDS):
            keys = mix(keys + GOLDEN) if turn else keys
            if turn % 2:
                right = (right + _below(columns, keys + (left + 1) * GOLDEN)) % columns
            else:
                left = (left + _below(rows, keys + (right + 1) * GOLDEN)) % rows
        return left + right * rows


def _below(size: int, x: NDArray[np.int64]) -> NDArray[np.int64]:
    """A scattered number in [0, size) for each element; size is below 2^32, so the bias is below 2^-31."""
    scattered: NDArray[np.int64] = (mix(x) & (2**63 - 1)) % size
    return scattered
