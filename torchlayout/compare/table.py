"""What a study is doing: a live table on a terminal, plain lines in a log."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from torchlayout.compare.planned import Planned
from torchlayout.compare.speed import RunSpeed, run_speed
from torchlayout.compare.state import RunRecord, StudyState
from torchlayout.compare.study import Study
from torchlayout.records import RunDirectory

STYLES = {"ok": "green", "running": "bold cyan", "oom": "yellow", "timeout": "yellow", "failed": "red"}
REFRESH_SECONDS = 1.0
FEWEST_ROWS = 5


def time_left(state: StudyState, elapsed: float) -> float | None:
    """Seconds that the runs without a result will take, as those with one did; None as long as there is none.

    elapsed: seconds since the one that is running was started, 0 where none is.
    """
    taken = {run.label: run.seconds for run in state.runs if run.seconds is not None}
    if not taken:
        return None
    usual = statistics.mean(taken.values())
    left = sum(taken.get(run.label, usual) for run in state.runs if run.status in ("pending", "running"))
    return max(0.0, left - elapsed)


def span(seconds: float) -> str:
    """A duration for a person: 41 s, 4 min, 3.2 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Figures:
    """Speed of the runs that are done, read once each."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._known: dict[str, RunSpeed | None] = {}

    def of(self, run: RunRecord) -> RunSpeed | None:
        """The figures of a run that is ok; None of any other."""
        if run.status != "ok":
            return None
        if run.directory not in self._known:
            steps = RunDirectory(self._study.directory / run.directory).metrics()
            self._known[run.directory] = run_speed(
                steps, self._study.compare.warmup_steps, self._study.compare.last_measured_step
            )
        return self._known[run.directory]

    def steps_done(self, run: RunRecord) -> int:
        """Steps that a run has recorded so far."""
        return len(RunDirectory(self._study.directory / run.directory).metrics())


class PlainView:
    """A line when a run starts and one when it ends, on standard error."""

    def __init__(self, study: Study) -> None:
        self._study, self._figures = study, Figures(study)
        self._shown: tuple[str, int, str] | None = None

    def __enter__(self) -> PlainView:
        for planned in self._study.layouts:
            if planned.skipped_reason is not None:
                print(f"{planned.label}: skipped: {planned.skipped_reason}", file=sys.stderr)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.stderr.flush()

    def show(self, state: StudyState, running: RunRecord | None, started: float | None) -> None:
        """Print what is new."""
        if running is None or self._shown == (running.label, running.repeat, running.status):
            return
        self._shown = (running.label, running.repeat, running.status)
        number = 1 + [(run.label, run.repeat) for run in state.runs].index((running.label, running.repeat))
        print(f"[{number}/{len(state.runs)}] {self._line(state, running)}", file=sys.stderr, flush=True)

    def _line(self, state: StudyState, run: RunRecord) -> str:
        line = f"{run.label}, repeat {run.repeat}: {run.status}"
        speed = self._figures.of(run)
        if speed is not None:
            line += f", {speed.step_seconds:.4g} s a step, {speed.tokens_per_second:,.0f} tokens/s"
        elif run.reason:
            line += f": {run.reason}"
        if run.seconds is not None:
            left = time_left(state, 0.0)
            line += f" (took {span(run.seconds)}" + (f"; {span(left)} left)" if left else ")")
        return line


class LiveView:
    """A table of the layouts that changes in place."""

    def __init__(self, study: Study, console: Console) -> None:
        self._study, self._console, self._figures = study, console, Figures(study)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._refreshed = 0.0
        self._last: tuple[str, int, str] | None = None

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, state: StudyState, running: RunRecord | None, started: float | None) -> None:
        """Draw the table, at most once a second while nothing changes."""
        now = time.monotonic()
        key = None if running is None else (running.label, running.repeat, running.status)
        if key != self._last or now - self._refreshed >= REFRESH_SECONDS:
            self._last, self._refreshed = key, now
            self._live.update(self.table(state, running, 0.0 if started is None else now - started), refresh=True)

    def table(self, state: StudyState, running: RunRecord | None, elapsed: float) -> Table:
        """The table as it is now; `elapsed` seconds since the run that is running was started."""
        done = [run for run in state.runs if run.status not in ("pending", "running")]
        left = time_left(state, elapsed)
        caption = f"{len(done)} of {len(state.runs)} runs done"
        if left is not None and len(done) < len(state.runs):
            caption += f"; about {span(left)} left"
        table = Table(box=box.SIMPLE, caption=caption, title=f"{self._study.directory}")
        table.add_column("layout", overflow="fold")
        for column in ("runs", "status", "s/step", "tokens/s", "peak GiB"):
            table.add_column(column, no_wrap=True, justify="left" if column == "status" else "right")
        for planned in self._window(state, running):
            self._row(table, planned, state.of(planned.label), elapsed)
        return table

    def _window(self, state: StudyState, running: RunRecord | None) -> Sequence[Planned]:
        """As many layouts as fit the terminal, the one that is running near the end of them."""
        layouts = self._study.layouts
        rows = max(FEWEST_ROWS, self._console.size.height - 8)
        if len(layouts) <= rows:
            return layouts
        at = next((i for i, planned in enumerate(layouts) if running and planned.label == running.label), 0)
        first = min(max(0, at - rows + 3), len(layouts) - rows)
        return layouts[first : first + rows]

    def _row(self, table: Table, planned: Planned, runs: Sequence[RunRecord], elapsed: float) -> None:
        ended = [run for run in runs if run.status not in ("pending", "running")]
        status, detail = "skipped" if planned.skipped_reason else "pending", ""
        for run in runs:
            if run.status == "running":
                status = "running"
                detail = f" {self._figures.steps_done(run)}/{self._study.compare.steps} steps, {span(elapsed)}"
                break
            if run.status not in ("pending", "skipped"):
                status = run.status
        speeds = [speed for run in runs if (speed := self._figures.of(run)) is not None]
        figures = ["", "", ""]
        if speeds:
            figures = [
                f"{statistics.median(speed.step_seconds for speed in speeds):.4g}",
                f"{statistics.median(speed.tokens_per_second for speed in speeds):,.0f}",
                f"{max(speed.peak_memory_bytes for speed in speeds) / 2**30:.2f}",
            ]
        label = Text(planned.label, style="dim" if status == "skipped" else "")
        table.add_row(
            label, f"{len(ended)}/{len(runs)}", Text(status + detail, style=STYLES.get(status, "dim")), *figures
        )


def view_of(study: Study) -> LiveView | PlainView:
    """The live table where standard error is a terminal, else plain lines."""
    console = Console(stderr=True)
    return LiveView(study, console) if console.is_terminal else PlainView(study)
