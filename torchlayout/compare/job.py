"""One run as a process of its own, with a guard beside it that leaves no orphan."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchlayout.compare import guard

# The guard's own patience, and some more.
GUARD_SECONDS = 4 * guard.GRACE_SECONDS + 20


class Job:
    """A command in a session of its own, its output in a log file. `stop` or the death of this process end it."""

    def __init__(self, command: Sequence[str], mark: str, log: Path, environment: Mapping[str, str]) -> None:
        self._mark = mark
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, mark, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    def wait(self, seconds: float) -> int | None:
        """The command's exit status, or None where it still runs after so many seconds."""
        try:
            status = self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._close()
        return status if status >= 0 else 128 - status

    def stop(self) -> None:
        """Ends the command and everything it has started."""
        self._close()
        try:
            self._guard.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        guard.end(self._mark)

    def _close(self) -> None:
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
        if self._guard.returncode is not None and self._guard.returncode < 0:
            guard.end(self._mark)  # somebody killed the guard, so its work is done here
