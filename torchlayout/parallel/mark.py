"""Where a step says what it is doing, so that a profiled one can be read: a range around each phase."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torchlayout.trace.ranges import Phase


class Mark(Protocol):
    """Opens the range of a phase, for work on a micro-batch with its stage and number (see `trace.ranges.Range`)."""

    def __call__(
        self, phase: Phase, *, step: int | None = None, stage: int | None = None, micro_batch: int | None = None
    ) -> AbstractContextManager[object]: ...


NO_RANGE = nullcontext()


def unmarked(
    phase: Phase, *, step: int | None = None, stage: int | None = None, micro_batch: int | None = None
) -> AbstractContextManager[object]:
    """The mark of a step that is not profiled. torch's record_function takes microseconds also without a profiler."""
    return NO_RANGE
