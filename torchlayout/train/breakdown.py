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
    command = [sys.executable, "-m", "torchlayout", "trace", str(folder), "--json"]
    try:
        if sum(path.stat().st_size for path in folder.glob("rank*.gz") if path.is_file()) > MOST_BYTES:
            return f"large, and so not analysed yet: {by_hand}"
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            return f"the analysis broke ({said[-1] if said else done.returncode}); again: {by_hand}"
        sentences = [str(cause["sentence"]) for cause in json.loads(done.stdout)["causes"]]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        return f"the analysis broke ({error}); again: {by_hand}"
    return "; ".join([*sentences[:1], f"all: {by_hand}"])
