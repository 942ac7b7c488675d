"""Kills a comparison at random moments, resumes it, and checks that the table is the same and no process is left.

python benchmarks/compare_kill.py [--kills 20] [--seed 0]

The training is tests/harness/fake_train.py, which starts as torchrun does (each rank in a session of its own) without
torch, so that a kill costs seconds. Every second kill is of the driver, the others of a rank, all by SIGKILL.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.studies import driver, processes_of, study_file, table, wait_until

LAYOUTS = ("fsdp2", "tp2", "pp2", "dp2")
BEHAVIOUR = {label: {"step_seconds": 0.1, "speed": 1.0 + number} for number, label in enumerate(LAYOUTS)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        undisturbed = whole(Path(folder) / "undisturbed")
        took = time.monotonic() - started
        wrong = 0
        for number in range(arguments.kills):
            victim = ("driver", "rank")[number % 2]
            problem = kill_once(Path(folder) / str(number), victim, moments.uniform(0, 0.8 * took), undisturbed)
            wrong += problem is not None
            print(f"{number + 1:2} {victim:6} {problem or 'the same table, no process left'}", flush=True)
    print(f"{arguments.kills} kills, {wrong} with another table or a process left")
    return 1 if wrong else 0


def whole(folder: Path) -> dict[str, Any]:
    """The table of a study that nobody kills."""
    folder.mkdir()
    assert driver(study_file(folder, LAYOUTS, repeats=2), behaviour=BEHAVIOUR).wait(120) == 0
    return table(folder / "studies" / "study")


def kill_once(folder: Path, victim: str, seconds: float, undisturbed: dict[str, Any]) -> str | None:
    """Kills a study after some seconds, resumes it; what is wrong then, or None."""
    folder.mkdir()
    file = study_file(folder, LAYOUTS, repeats=2)
    running = driver(file, behaviour=BEHAVIOUR)
    time.sleep(seconds)
    if victim == "driver":
        running.kill()
        running.wait()
    else:
        # Between two jobs there is none, and after the last there is none to wait for; the oldest is the launcher.
        wait_until(lambda: len(processes_of(file)) > 2 or running.poll() is not None, 60)
        ranks = sorted(processes_of(file))[1:]
        if ranks:
            os.kill(random.Random(seconds).choice(ranks), signal.SIGKILL)
        running.wait(120)
    try:
        wait_until(lambda: processes_of(file) == [], 20)
    except AssertionError:
        return f"processes {processes_of(file)} are left"
    if driver(file, "--resume", behaviour=BEHAVIOUR).wait(120) != 0:
        return "it cannot be resumed"
    if processes_of(file):
        return f"processes {processes_of(file)} are left after the end"
    return None if table(folder / "studies" / "study") == undisturbed else "another table"


if __name__ == "__main__":
    sys.exit(main())
