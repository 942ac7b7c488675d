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
from torchlayout.train.memory import (
    lift_host_memory_limit,
    limit_host_memory,
    out_of_memory,
    record_out_of_memory,
    recorded_out_of_memory,
)
from torchlayout.train.metrics import MetricsWriter
from torchlayout.train.trainer import Trainer, TrainingStopped


def run(config: Config, layout: Layout, rank: int) -> int:
    """Train to the last step; the exit status: 0 done, 1 stopped because nothing finite came out, or memory ran out."""
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
    limit = config.train.host_memory_limit_gib
    limit_host_memory(limit, device)
    if rank == 0:
        directory.run_path.unlink(missing_ok=True)  # of a run that ended before its first step
    with process_group(device, config.train.timeout_seconds):
        try:
            return _train(config, layout, device, directory, rank)
        except Exception as error:
            lift_host_memory_limit()
            own = out_of_memory(error, limit, rank if layout.world > 1 else None)
            sentence = own or recorded_out_of_memory(directory)
            if sentence is None:
                raise
            # The other ranks only see that a connection broke, so the one that knows writes it down before it leaves.
            record_out_of_memory(directory, sentence, {"layout": str(layout), "world": layout.world})
            if own is not None or rank == 0:
                print(sentence, file=sys.stderr, flush=True)
            if own is not None and rank != 0:
                os._exit(1)  # leaving the group can wait for ranks that wait for this one
        return 1


def _train(config: Config, layout: Layout, device: torch.device, directory: RunDirectory, rank: int) -> int:
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
        lift_host_memory_limit()
        reason = recorded_out_of_memory(directory) or f"{type(error).__name__}: {error}"
        raise
    finally:
        metrics.close(trainer, reason)
        trainer.close()
    return 0 if reason == "done" else 1
