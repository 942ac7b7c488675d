"""Start torchrun on this machine's CPU with small ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def torchrun(ranks: int, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run `torchrun --standalone --nproc-per-node RANKS ARGUMENTS` to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
    }

    def launch() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )

    done = launch()
    if "(SIGABRT)" in done.stderr:
        # Seen twice in hundreds of launches on loaded cores: glibc, or the C++ runtime, aborted a rank. A wrong result
        # or an exception is never tried again.
        warnings.warn(f"a rank aborted, trying once more: {done.stderr[:500]}", stacklevel=2)
        done = launch()
    return done


def train_layouts(ranks: int, jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Train every job ({"label", "config"}) on `ranks` ranks, in one launch."""
    jobs_file, results_file = folder / f"jobs-{ranks}.json", folder / f"results-{ranks}.pt"
    jobs_file.write_text(json.dumps(jobs))
    patience = 240 + 30 * len(jobs)
    done = torchrun(ranks, str(HERE / "worker.py"), str(jobs_file), str(results_file), timeout=patience)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    results: list[dict[str, Any]] = torch.load(results_file)
    return results
