"""One run from start to end: join the ranks, train, leave the files behind."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console

from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.records import RunDirectory
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.evaluate import Evaluation
from torchlayout.train.metrics import MetricsWriter
from torchlayout.train.trainer import Trainer, TrainingStopped


def run(config: Config, layout: Layout, rank: int) -> int:
    """Train to the last step; the exit status: 0 done, 1 stopped because nothing finite came out."""
    console = Console(quiet=rank != 0)
    device = pick_device()
    torch.use_deterministic_algorithms(config.train.deterministic)
    with process_group(device, config.train.timeout_seconds):
        trainer = Trainer(config, layout, device)
        directory = RunDirectory(Path(config.run.directory) / config.run.name)
        metrics = MetricsWriter(trainer, directory, console)
        console.print(
            f"{layout}: {layout.world} ranks on {device.type}, {directory.path}; {metrics.speed_note}",
            soft_wrap=True,
        )
        reason, status = "interrupted", 1
        try:
            trainer.fit([Evaluation(), metrics])
            reason, status = "done", 0
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
    return status
