"""Being told to stop: by a signal (Slurm's preemption, torchrun's shutdown) or by a limit on wall time."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ
TIME_LIMIT = 1  # a code beside the signals' numbers


class StopRequest:
    """Whether this rank was told to stop. The ranks agree on it in the exchange of each step."""

    def __init__(self, limit_minutes: float | None) -> None:
        self.limit_minutes = limit_minutes
        self.started = time.monotonic()
        self.signal = 0

    def code(self) -> int:
        """0, the number of the signal that came, or TIME_LIMIT; of several ranks' codes the highest counts."""
        if self.signal:
            return self.signal
        over = self.limit_minutes is not None and time.monotonic() - self.started >= 60 * self.limit_minutes
        return TIME_LIMIT if over else 0

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Remember a signal rather than die of it; again and again, as Slurm and torchrun may both send it.

        A second Ctrl-C ends a process that is alone at once.
        """
        before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == self.signal == signal.SIGINT and not UNDER_TORCHRUN:
            raise KeyboardInterrupt
        self.signal = number


def stop_with_launcher() -> None:
    """Have the kernel send this rank SIGTERM when its torchrun dies: nobody else would tell it to end."""
    if sys.platform == "linux" and UNDER_TORCHRUN:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop_reason(code: int) -> str | None:
    """The words for a code."""
    if code == 0:
        return None
    return "the wall-time limit" if code == TIME_LIMIT else signal.Signals(code).name
