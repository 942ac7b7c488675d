"""Has the traces of a run analysed once it has ended: where the time went, for its console and for TensorBoard."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# More than some minutes of one core; a larger window is left to whoever wants it.
MOST_BYTES = 200 * 2**20
PATIENCE_SECONDS = 900


def break_down(folder: Path, run: Path) -> str:
    """Analyse a window of traces in a process of its own, whose failure is no failure of the run; what to say of it."""
    by_hand = f"torchlayout trace {run}"
    if sum(path.stat().st_size for path in folder.glob("rank*.gz")) > MOST_BYTES:
        return f"large, and so not analysed yet: {by_hand}"
    command = [sys.executable, "-m", "torchlayout", "trace", str(folder), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        causes = json.loads(done.stdout)["causes"] if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        return f"the analysis broke ({error}); again: {by_hand}"
    if causes is None:
        said = done.stderr.strip().splitlines()
        return f"the analysis broke ({said[-1] if said else done.returncode}); again: {by_hand}"
    first = f"{causes[0]['sentence']}; all: " if causes else "all: "
    return f"{first}{by_hand}"
