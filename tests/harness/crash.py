"""A run under torchrun's restarts whose ranks are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchlayout.records import RunDirectory

RANKS = 2


def command(corpus: Path, folder: Path, steps: int, restarts: int) -> list[str]:
    """The command line of a small run of RANKS ranks that saves every third step."""
    values = {
        "run.directory": folder,
        "run.name": "run",
        "data.path": corpus,
        "data.sequence_length": 32,
        "data.workers": 0,
        "batch.global_size": 8,
        "precision.parameters": "fp32",
        "train.steps": steps,
        "train.timeout_seconds": 60,
        "checkpoint.every": 3,
        "checkpoint.keep": 2,
    }
    config = folder / "config.toml"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text('[model]\npreset = "debug"\n[data]\npath = ""\n')
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    launcher += ["--max-restarts", str(restarts), "-m", "torchlayout.train", str(config)]
    return [sys.executable, *launcher, *(part for key, value in values.items() for part in ("--set", f"{key}={value}"))]


def train(corpus: Path, folder: Path, steps: int, *, kills: int = 0, seed: int = 0) -> tuple[RunDirectory, int, int]:
    """Train, killing a rank or all of them `kills` times; the run, how often it was killed, and in how many saves."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    run, rng = RunDirectory(folder / "run"), random.Random(seed)
    done, in_saves = 0, 0
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        line = command(corpus, folder, steps, restarts=kills + 2)
        agent = subprocess.Popen(line, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            while agent.poll() is None:
                if done < kills and (ranks := _ready(agent.pid, run)):
                    in_save = rng.random() < 0.5 and _wait_for_save(run)
                    time.sleep(rng.uniform(0, 0.01 if in_save else 1.0))
                    victims = ranks if rng.random() < 0.3 else [rng.choice(ranks)]
                    killed = [_kill(rank) for rank in victims]
                    if any(killed):
                        done, in_saves = done + 1, in_saves + in_save
                    _wait_until_gone(ranks)
                time.sleep(0.02)
        finally:
            agent.terminate()
            agent.wait()
    assert agent.returncode == 0, Path(log.name).read_text()[-6000:]
    return run, done, in_saves


def facts_that_must_not_depend_on_crashes(run: RunDirectory) -> dict[str, Any]:
    """Everything of a run's records but times and memory; metrics.jsonl as it is, line for line."""
    lines = [line for line in run.metrics_path.read_text().splitlines() if line]
    steps = [
        (record["step"], record["loss"], record["grad_norm"], record["tokens"], record["batch_digest"])
        for record in run.metrics()
    ]
    facts = run.read_run()
    return {
        "lines": len(lines),
        "steps": steps,
        "weights": facts["final_weights_digest"],
        "reason": facts["exit_reason"],
    }


def _ready(agent: int, run: RunDirectory) -> list[int]:
    """The ranks' processes, once they have taken a step since they started."""
    ranks = [int(child) for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
    with suppress(FileNotFoundError, ProcessLookupError):
        started = max((Path(f"/proc/{rank}").stat().st_mtime for rank in ranks), default=time.time())
        if len(ranks) == RANKS and run.metrics_path.stat().st_mtime > started + 0.5:
            return ranks
    return []


def _wait_for_save(run: RunDirectory) -> bool:
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        if next(run.checkpoints_path.glob(".step_*"), None) is not None:
            return True
        time.sleep(0.001)
    return False


def _kill(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def _wait_until_gone(processes: list[int]) -> None:
    while any(Path(f"/proc/{process}").exists() for process in processes):
        time.sleep(0.02)
