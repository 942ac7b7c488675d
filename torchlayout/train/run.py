"""One run from start to end: join the ranks, train, leave the files behind."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from rich.console import Console

from torchlayout.checkpoint import Checkpoints
from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.records import RunDirectory
from torchlayout.train.checkpoint import Saver
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
from torchlayout.train.profiler import Profiler
from torchlayout.train.resume import beginning
from torchlayout.train.state import load_state
from torchlayout.train.stop import stop_with_launcher
from torchlayout.train.trainer import Trainer, TrainingStopped

INTERRUPTED = 130


def run(config: Config, layout: Layout, rank: int) -> int:
    """Train to the last step, or until told to stop; the exit status.

    0: done, or stopped as told (130: by Ctrl-C). 1: nothing finite came out, memory ran out, or the last checkpoint was
    not saved.
    """
    stop_with_launcher()
    directory = RunDirectory(Path(config.run.directory) / config.run.name)
    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(True)
    device = pick_device()
    limit = config.train.host_memory_limit_gib
    limit_host_memory(limit, device)
    with directory.locked() if rank == 0 else nullcontext(), process_group(device, config.train.timeout_seconds):
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
    console = Console(quiet=rank != 0, soft_wrap=True, highlight=False)
    begin = beginning(config, directory, console)
    checkpoint, checkpoints = begin.checkpoint, Checkpoints(directory.checkpoints_path, begin.passed_over)
    if checkpoint is not None and checkpoint.step >= config.train.steps:
        console.print(
            f"nothing to do: {checkpoint.path} is at step {checkpoint.step} of train.steps = {config.train.steps}; "
            "raise it to go on"
        )
        return 0
    if rank == 0:
        directory.run_path.unlink(missing_ok=True)  # what it says of how the run ended is about to be untrue
        checkpoints.discard_unfinished()
    trainer = Trainer(config, layout, device)
    if checkpoint is not None:
        load_state(trainer, checkpoint)
        console.print(f"resumed from {checkpoint.path}, saved under {checkpoint.index.state['layout']}")
    metrics = MetricsWriter(trainer, directory, console, None if checkpoint is None else str(checkpoint.path))
    console.print(f"{layout} on {layout.world} x {device.type} -> {directory.path}; {metrics.speed_note}")
    if config.train.wall_time_limit_minutes is not None and config.checkpoint.every == 0:
        console.print("the wall-time limit will end this run without saving it: checkpoint.every = 0")
    saver, profiler = Saver(trainer, checkpoints, console), Profiler(trainer, directory, console)
    reason, final_weights = "interrupted", None
    try:
        with trainer.stop.on_signals():
            stop = trainer.fit([Evaluation(), metrics, saver], profiler)
            profiler.finish()
            saver.finish()
        final_weights = trainer.weights_digest()
        reason = "done" if stop is None else f"stopped by {stop} after step {trainer.steps_done}"
        if stop is not None:
            console.print(reason + "; nothing was saved: checkpoint.every = 0" * (config.checkpoint.every == 0))
    except TrainingStopped as stopped:
        reason = str(stopped)
        if rank == 0:
            print(stopped, file=sys.stderr)
        return 1
    except Exception as error:
        lift_host_memory_limit()
        reason = recorded_out_of_memory(directory) or f"{type(error).__name__}: {error}"
        raise
    finally:
        metrics.close(trainer, reason, final_weights)
        saver.close()
        trainer.close()
        profiler.close()
    profiler.report()
    if saver.failure is not None:
        return 1
    return INTERRUPTED if stop == "SIGINT" else 0
