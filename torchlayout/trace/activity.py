"""What a rank did, the same form whether a device or the host computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchlayout.trace.intervals import EMPTY, Intervals, clip, intervals, union
from torchlayout.trace.ranges import Phase

CLASSES = ("gemm", "attention", "elementwise", "other")


class Step(NamedTuple):
    """A step of the loop and its nanoseconds, start and end."""

    number: int
    start: int
    end: int


class Work(NamedTuple):
    """A micro-batch in a stage: when its computation began and ended, in nanoseconds.

    phase: forward, backward or weight.
    """

    phase: Phase
    stage: int
    micro_batch: int
    start: int
    end: int


class Transfer(NamedTuple):
    """A rank's part in a collective, or a message, in nanoseconds.

    ranks: of its group, empty where the trace does not say. peer: the other rank of a message, None where unknown.
    bytes: of the larger of input and output, 0 where unknown. issued: when the host started it, None where unknown.
    """

    start: int
    end: int
    name: str
    collective: str
    axis: str
    ranks: tuple[int, ...] = ()
    peer: int | None = None
    bytes: int = 0
    issued: int | None = None


class Kernel(NamedTuple):
    """All runs of one kernel or operator in a step (-1: outside of all); communication is a class of its own here."""

    name: str
    kind: str
    runs: int
    nanoseconds: int
    step: int


@dataclass(frozen=True)
class Activity:
    """What one rank did.

    compute: by class, each disjoint; classes may overlap, as streams do. optimizer: the part of compute that updates
    parameters. phases: what the host marked. work: the micro-batches, and transfers, in the order of their start.
    """

    rank: int
    host: str
    device: str
    device_name: str | None
    world: int | None
    steps: tuple[Step, ...]
    compute: dict[str, Intervals]
    optimizer: Intervals
    phases: dict[str, Intervals]
    work: tuple[Work, ...]
    transfers: tuple[Transfer, ...]
    kernels: tuple[Kernel, ...]
    pipeline: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def phase(self, name: Phase) -> Intervals:
        """When the host was in a phase."""
        return self.phases.get(name, EMPTY)

    def computing(self) -> Intervals:
        """When anything was computed."""
        return union(*self.compute.values())

    def transferring(self, step: Step) -> list[Transfer]:
        """The transfers that reach into a step."""
        starts, reached = self._transfer_times
        # Before the first that can, all have ended.
        first, last = np.searchsorted(reached, step.start, side="right"), np.searchsorted(starts, step.end)
        return [transfer for transfer in self.transfers[first:last] if transfer.end > step.start]

    @cached_property
    def _transfer_times(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The start of each transfer, and the latest end up to it."""
        spans = intervals((transfer.start, transfer.end) for transfer in self.transfers)
        return spans[:, 0], np.maximum.accumulate(spans[:, 1])

    def working(self, step: Step) -> list[Work]:
        """The micro-batches of a step."""
        return [work for work in self.work if step.start <= work.start < step.end]

    def within(self, step: Step) -> dict[str, Intervals]:
        """What is computed in a step, by class."""
        return {kind: clip(spans, step.start, step.end) for kind, spans in self.compute.items()}
