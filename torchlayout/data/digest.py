"""What a step consumed, as one number that no layout may change."""

from __future__ import annotations

from typing import Any

from torchlayout.data.mix import GOLDEN, mix


def batch_digest(samples: Any, positions: Any, tokens: Any, labels: Any) -> int:
    """Sum modulo 2^64 of a hash of (sample, position, input token, label) over all tokens.

    `samples` is int64 [batch], the rest int64 [batch, sequence], all arrays or all tensors. Digests of disjoint
    parts of a batch add up (modulo 2^64) to the digest of the whole, so ranks can sum theirs.
    """
    hashed = mix(samples[:, None] + GOLDEN)
    for part in (positions, tokens, labels):
        hashed = mix((hashed ^ part) + GOLDEN)
    return int(hashed.sum()) % 2**64
