"""The 64-bit mix under the sample order and the batch digest, for numpy and torch alike."""

from __future__ import annotations

from typing import Any

_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def signed(value: int) -> int:
    """The int64 with the bits of `value` modulo 2^64."""
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


GOLDEN = signed(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: steps by it never meet soon, and keep mix(0) = 0 away


def _shifted(x: Any, bits: int) -> Any:
    # A shift of int64 carries the sign along, and torch has no uint64 arithmetic: the sign bits are masked off.
    return (x >> bits) & (2 ** (64 - bits) - 1)


def mix(x: Any) -> Any:
    """A bijection of int64 that scatters all bits, element by element on an array or tensor.

    Source: the finaliser of splitmix64 (Steele, Lea, Flood 2014, variant 13 of Stafford).
    """
    x = (x ^ _shifted(x, 30)) * signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * signed(_SECOND)
    return x ^ _shifted(x, 31)
