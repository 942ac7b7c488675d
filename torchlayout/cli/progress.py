"""How far a job over many bytes is: a bar on a terminal, a plain line now and then in a log; both on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

LINE_SECONDS = 5.0


class ByteProgress:
    """Shows `report(done, total)`, in bytes; what the first report calls done was there before and has no speed."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = self._last_line = time.monotonic()
        self._kept = self._done = self._total = 0
        self.seconds = 0.0
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console) if console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task(title, total=None, start=False)

    @property
    def megabytes_per_second(self) -> float:
        """Speed over what was done here, 10^6 bytes a second."""
        return (self._done - self._kept) / 1e6 / max(self.seconds, 1e-9)

    def report(self, done: int, total: int) -> None:
        """Note that `done` of `total` bytes are done."""
        now = time.monotonic()
        if self._total == 0:
            self._started, self._last_line, self._kept = now, now, done
            if self._bar is not None and self._task is not None:
                self._bar.start_task(self._task)
        self._done, self._total, self.seconds = done, total, now - self._started
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            self._line()

    def _line(self) -> None:
        done, total = self._done / 1e6, self._total / 1e6
        kept = self._kept and self._kept == self._total
        speed = ", all kept from before" if kept else f", {self.megabytes_per_second:.1f} MB/s"
        print(f"{self._title}: {done:.1f} of {total:.1f} MB{speed}", file=sys.stderr, flush=True)

    def __enter__(self) -> ByteProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._total:
            self._line()
