"""Seconds of collectives and transfers, by where the ranks of a group sit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torchlayout.hardware import Hardware
    from torchlayout.plan.calibration import Calibration


RING_STEPS = 32
"""Beyond so many steps of a ring, collectives go by trees, and latency hardly grows."""

MOST_NODES = 64
"""On more nodes nothing was measured: a ring is not taken to slow down any further."""


class Group(NamedTuple):
    """Ranks that talk: how many, how many of them share a node, and over how many nodes they reach."""

    size: int
    inside: int
    nodes: int

    @classmethod
    def of(cls, size: int, stride: int, gpus_per_node: int) -> Group:
        """A group of `size` ranks, `stride` ranks apart, ranks filling nodes in order."""
        inside = min(size, max(1, gpus_per_node // stride))
        return cls(size, inside, math.ceil(size / inside))


class Links:
    """Prices of communication under one calibration."""

    def __init__(self, hardware: Hardware, calibration: Calibration) -> None:
        self.numbers = calibration.links
        self.hardware = hardware
        self.inside_bandwidth = hardware.intra_node_bandwidth * self.numbers.tensor_efficiency
        self.hop_bandwidth = hardware.inter_node_bandwidth * self.numbers.hop_efficiency
        self._groups: dict[tuple[int, int], Group] = {}
        self._prices: dict[Group, tuple[float, float]] = {}

    def group(self, size: int, stride: int) -> Group:
        """The group of `size` ranks, `stride` apart."""
        key = (size, stride)
        if key not in self._groups:
            self._groups[key] = Group.of(size, stride, self.hardware.gpus_per_node)
        return self._groups[key]

    def _price(self, group: Group) -> tuple[float, float]:
        """(bandwidth, latency) of a group."""
        if group not in self._prices:
            self._prices[group] = (self.bandwidth(group), self.latency(group))
        return self._prices[group]

    def bandwidth(self, group: Group) -> float:
        """Bus bandwidth of a ring over a group, when every rank of a node is in such a group at once."""
        if group.nodes == 1:
            return self.inside_bandwidth
        numbers, out = self.numbers, self.hardware.inter_node_bandwidth
        share = numbers.node_efficiency * out * group.inside
        crowd = 1 + min(group.nodes, MOST_NODES) / numbers.nodes_at_half
        return min(self.inside_bandwidth, share / crowd)

    def latency(self, group: Group) -> float:
        """Seconds of a collective of no bytes."""
        numbers = self.numbers
        inside = numbers.latency_seconds * (math.log2(group.inside) + 1)
        if group.nodes == 1:
            return inside
        return inside + numbers.node_latency_seconds * min(group.size - 1, RING_STEPS)

    def gather(self, whole_bytes: float, group: Group) -> float:
        """Seconds of an all-gather or a reduce-scatter whose whole tensor has so many bytes."""
        if group.size == 1:
            return 0.0
        bandwidth, latency = self._price(group)
        return whole_bytes * (group.size - 1) / group.size / bandwidth + latency

    def all_reduce(self, whole_bytes: float, group: Group) -> float:
        """Seconds of an all-reduce of so many bytes."""
        if group.size == 1:
            return 0.0
        bandwidth, latency = self._price(group)
        return 2 * whole_bytes * (group.size - 1) / group.size / bandwidth + latency

    def hop(self, sent_bytes: float) -> float:
        """Seconds of a transfer to the next pipeline rank."""
        return self.numbers.hop_seconds + sent_bytes / self.hop_bandwidth
