"""Runs one command and leaves nothing of it behind, whoever is killed; started by `job.Job`, standard library only.

python guard.py MARK COMMAND...

Standard input is the leash: when it closes, because the driver says so or is dead, the command and everything it has
started end. torchrun gives each rank a session of its own, so a process group does not hold them together; they all
inherit the mark in their environment, and by it they are found even when their parents are gone (Linux).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "TORCHLAYOUT_COMPARE_JOB"
GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL: srun needs a moment to end the ranks of other nodes."""
POLL_SECONDS = 0.05


def marked(mark: str) -> list[int]:
    """The living processes that inherited a mark."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Gone since, another user's, or a zombie, which has no environment any more.
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end(mark: str, grace_seconds: float = GRACE_SECONDS) -> None:
    """Ends every process with a mark: by SIGTERM, and after the grace by SIGKILL."""
    started = time.monotonic()
    asked: set[int] = set()
    while pids := marked(mark):
        kill = time.monotonic() - started >= grace_seconds
        for pid in pids:
            if kill or pid not in asked:
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        if time.monotonic() - started >= 4 * grace_seconds + 10:
            raise TimeoutError(f"processes {pids} do not end, even by SIGKILL")
        time.sleep(POLL_SECONDS)


def main(mark: str, command: list[str]) -> int:
    """Runs the command; its exit status, 128 + the signal where one ended it."""
    leash_cut = False

    def cut(*_: object) -> None:
        nonlocal leash_cut
        leash_cut = True

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, cut)
    try:
        child = subprocess.Popen(
            command, env=os.environ | {VARIABLE: mark}, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    while child.poll() is None and not leash_cut:
        # Nothing is ever written to it: that it can be read means that it is closed.
        leash_cut = leash_cut or bool(select.select([sys.stdin], [], [], POLL_SECONDS)[0])
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)  # where there is no /proc this is all that can be done
    # SIGCHLD is not handled, so a child that has ended stays a zombie until it is waited for.
    end(mark)
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
