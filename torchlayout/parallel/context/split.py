"""Which positions of a sequence a context rank holds."""

from __future__ import annotations

import torch
from torch import Tensor


def held_positions(method: str, sequence: int, rank: int, ranks: int) -> Tensor:
    """Ascending positions, [sequence / ranks].

    ulysses: a contiguous part, since every rank then attends over whole sequences. ring: of 2 x ranks chunks the
    rank-th from the head and the rank-th from the tail, so that under a causal mask all ranks have equal work.
    """
    if method == "ulysses":
        return torch.arange(sequence).chunk(ranks)[rank]
    chunks = torch.arange(sequence).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])
