"""Saving and loading against a plain write and read of as many bytes, and how long an asynchronous save blocks.

python benchmarks/checkpoint.py [--repeats 3] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from torchlayout.checkpoint import Checkpoint, Checkpoints
from torchlayout.config import Config
from torchlayout.data.prepare import prepare
from torchlayout.layout import Layout
from torchlayout.train.checkpoint import Saver
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.state import load_state
from torchlayout.train.trainer import Trainer

AT_ONCE = 2**24


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the checkpoints go; the disk that is measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name, process_group(pick_device(), 600):
        measure(Path(name), arguments.repeats)
    return 0


def measure(folder: Path, repeats: int) -> None:
    prepare([__file__], folder / "tokens")
    plain, blocking = (trainer_of(folder, asynchronous) for asynchronous in (False, True))
    saver, background = (
        Saver(trainer, Checkpoints(folder / name), Console(quiet=True))
        for name, trainer in (("plain", plain), ("background", blocking))
    )
    background.save(blocking, wait=True)  # the first one makes the copy's memory
    times: dict[str, list[float]] = {}
    raw, content = (
        folder / "raw",
        memoryview(torch.rand(background.checkpoints.committed()[0].bytes // 4).numpy()).cast("B"),
    )
    for _ in range(repeats):
        plain.steps_done += 1
        blocking.steps_done += 1
        timed(times, "save", lambda: saver.save(plain, wait=True))
        checkpoint = saver.checkpoints.committed()[-1]
        timed(times, "raw write", lambda: write_plainly(raw, content))
        forget(folder)
        timed(times, "raw read", lambda: read_plainly(raw))
        forget(folder)
        timed(times, "verify", lambda found=checkpoint: list(found.faults()))
        timed(times, "load", lambda found=checkpoint: load_state(plain, Checkpoint(found.path)))
        timed(times, "asynchronous save", lambda: background.save(blocking, wait=False))
        timed(times, "its rest", background.finish)
    assert saver.failure is None
    assert background.failure is None
    background.close()
    print_table(times, checkpoint.bytes)


def trainer_of(folder: Path, asynchronous: bool) -> Trainer:
    """121 million parameters after a step: 1.5 GB of weights and moments."""
    config = Config.from_dict(
        {
            "model": {"preset": "debug", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 10},
            "data": {"path": str(folder / "tokens"), "sequence_length": 32, "workers": 0},
            "batch": {"global_size": 1},
            "precision": {"parameters": "fp32"},
            "checkpoint": {"every": 1, "keep": 1, "asynchronous": asynchronous},
        }
    )
    trainer = Trainer(config, Layout(), pick_device())
    trainer.step()
    return trainer


def timed(times: dict[str, list[float]], name: str, call: Callable[[], object]) -> None:
    os.sync()
    started = time.perf_counter()
    call()
    times.setdefault(name, []).append(time.perf_counter() - started)


def write_plainly(path: Path, content: memoryview) -> None:
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(content), AT_ONCE):
            file.write(content[start : start + AT_ONCE])
        os.fsync(file.fileno())


def read_plainly(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(AT_ONCE):
            pass


def forget(folder: Path) -> None:
    """Have the kernel drop what it holds of our files, so that reading means the disk."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def print_table(times: dict[str, list[float]], size: int) -> None:
    median = {name: statistics.median(values) for name, values in times.items()}
    for name, seconds in median.items():
        print(f"{name:<18} {seconds:7.3f} s  {size / seconds / 1e6:8.0f} MB/s")
    loading = median["verify"] + median["load"]
    print(f"{size / 1e6:.0f} MB; save {median['raw write'] / median['save']:.2f} of a plain write, ", end="")
    print(f"verify and load {median['raw read'] / loading:.2f} of a plain read, ", end="")
    print(f"an asynchronous save blocks for {median['asynchronous save'] / median['save']:.1%} of a save")


if __name__ == "__main__":
    sys.exit(main())
