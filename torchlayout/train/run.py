"""One run from start to end: join the ranks, train, leave the files behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from rich.console import Console

from torchlayout.config import Config
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.records import RunDirectory
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.evaluate import Evaluation
from torchlayout.train.metrics import MetricsWriter
from torchlayout.train.trainer import Trainer, TrainingStopped


def run(config: Config, layout: Layout, rank: int) -> int:
    """Train to the last step; the exit status: 0 done, 1 stopped because nothing finite came out."""
    directory = RunDirectory(Path(config.run.directory) / config.run.name)
    if directory.metrics_path.exists():
        raise InputError(
            f"run.name = {config.run.name!r}: {directory.path} already holds a run; "
            "choose another run.name or run.directory, or move that folder away"
        )
    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(True)
    device = pick_device()
    with process_group(device, config.train.timeout_seconds):
        trainer = Trainer(config, layout, device)
        console = Console(quiet=rank != 0, soft_wrap=True, highlight=False)
        metrics = MetricsWriter(trainer, directory, console)
        console.print(f"{layout} on {layout.world} x {device.type} -> {directory.path}; {metrics.speed_note}")
        reason = "interrupted"
        try:
            trainer.fit([Evaluation(), metrics])
            reason = "done"
        except TrainingStopped as stopped:
            reason = str(stopped)
            if rank == 0:
                print(stopped, file=sys.stderr)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            metrics.close(trainer, reason)
            trainer.close()
    return 0 if reason == "done" else 1
