"""Stands for torchrun and its ranks in tests of the comparison: starts in milliseconds and fails as it is told.

python fake_train.py RANKS -m torchlayout.train CONFIG --set KEY=VALUE...

What a layout does is in $FAKE_BEHAVIOUR, JSON by label: {"do": ..., "step_seconds": ..., "speed": ..., KEY: VALUE in
every step}. Like torchrun, it gives each rank a session of its own, and when one dies it ends the others.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FACTS = {
    "initial_weights_digest": "00c0ffee00c0ffee",
    "software": {"torch": "2.13.0"},
    "hardware": {"device": "cpu", "host": "here"},
    "mfu_note": "no MFU: it is a test",
}


def settings(arguments: list[str]) -> dict[str, Any]:
    given = (word.partition("=") for flag, word in itertools.pairwise(arguments) if flag == "--set")
    return {key: json.loads(value) for key, _, value in given}


def label_of(config: Path) -> str:
    found = re.search(r'^label = "(.*)"$', config.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def launch(ranks: int, arguments: list[str]) -> int:
    command = [sys.executable, "-I", "-S", __file__]
    workers = [subprocess.Popen([*command, f"rank{rank}", *arguments], start_new_session=True) for rank in range(ranks)]
    while None in (codes := [worker.poll() for worker in workers]) and not any(codes):
        time.sleep(0.005)
    failed = next((rank for rank, code in enumerate(codes) if code), None)
    if failed is None:
        return 0
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    print(f"Root Cause (first observed failure):\n  rank      : {failed} (local_rank: {failed})", file=sys.stderr)
    print(f"  exitcode  : {codes[failed]} (pid: {workers[failed].pid})", file=sys.stderr)
    return 1


def train(rank: int, arguments: list[str]) -> int:
    config, given = Path(arguments[2]), settings(arguments)
    label = label_of(config)
    told = json.loads(os.environ.get("FAKE_BEHAVIOUR", "{}")).get(label, {})
    directory = Path(given["run.directory"]) / given["run.name"]
    if rank == 0:
        if log := os.environ.get("FAKE_ORDER"):
            with open(log, "a") as file:
                file.write(f"{label} {given['run.name']}\n")
        write(directory, label, config, "running")
    do = told.get("do", "train")
    if do == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    steps = given["train.steps"]
    for step in range(1, steps + 1):
        if rank == 0 and not (do == "short" and step == steps):
            append(directory, step, told)
        if step == 2 and do != "train" and (code := misbehave(do, rank, directory, label, config)) is not None:
            return code
        time.sleep(told.get("step_seconds", 0.0))
    if rank == 0:
        write(directory, label, config, "done")
    return 0


def misbehave(do: str, rank: int, directory: Path, label: str, config: Path) -> int | None:
    if do in ("hang", "stubborn"):
        time.sleep(600)
    if do == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank != 0 or do in ("kill", "short"):
        time.sleep(0 if do == "short" else 60)
        return None
    if do == "oom":
        write(directory, label, config, "out of memory: 8 GiB more could not be allocated")
    if do == "oom in the log":
        print("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8 GiB.", file=sys.stderr)
    if do == "crash":
        print("Traceback (most recent call last):\nValueError: planted", file=sys.stderr)
    if do == "refuse":
        print("W0101 warning of torch\nbatch.global_size = 3 cannot be", file=sys.stderr)
        return 2
    return 1


def write(directory: Path, label: str, config: Path, exit_reason: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_text(json.dumps(FACTS | {"layout": label, "exit_reason": exit_reason}))
    (directory / "config.toml").write_text(config.read_text())


def append(directory: Path, step: int, told: dict[str, Any]) -> None:
    seconds = told.get("speed", 1.0) * (1 + 0.01 * step)
    line = {
        "step": step,
        "loss": 5.0 / step,
        "grad_norm": 1.0 / step,
        "learning_rate": 1e-3,
        "tokens": 64 * step,
        "seconds": seconds,
        "data_seconds": 0.01,
        "tokens_per_second": 64 / seconds,
        "tokens_per_second_per_device": 32 / seconds,
        "mfu": None,
        "hfu": None,
        "peak_memory_bytes": 2**30,
        "peak_memory_bytes_by_rank": [2**29, 2**30],
        "batch_digest": f"{step:016x}",
        "skipped": False,
    }
    line |= {key: value for key, value in told.items() if key in line}
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    who, *rest = sys.argv[1:]
    sys.exit(train(int(who[4:]), rest) if who.startswith("rank") else launch(int(who), rest))
