"""Trains with known faults planted, profiled, in one launch of torchrun: live_ranks.py JOBS.json.

A job: {"name", "label", "config", "nap", "slow_rank", "slow_loader"}. nap: seconds that every block sleeps in the
forward of a micro-batch, and twice that in its backward, as an operator that the profiler sees; slow_rank sleeps twice
as long; slow_loader: seconds that rank 0 waits for every batch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchlayout.config import Config
from torchlayout.model.llama import Block
from torchlayout.records import RunDirectory
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.leave import leave
from torchlayout.train.profiler import Profiler
from torchlayout.train.trainer import Trainer


@torch.library.custom_op("workload::sleep", mutates_args=())
def sleep(x: Tensor, seconds: float) -> Tensor:
    """A copy of x, after a while."""
    time.sleep(seconds)
    return x.clone()


class Nap(torch.autograd.Function):
    """Sleeps in the forward, and twice as long in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return sleep(x, seconds)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return sleep(gradient, 2 * ctx.seconds), None


def with_naps(seconds: float) -> Any:
    """A forward of a block that sleeps first."""
    forward = Block.forward

    def slept(self: Block, x: Tensor, *arguments: Any) -> Tensor:
        return forward(self, Nap.apply(x, seconds), *arguments)

    return slept


def slowly(batches: Iterator[Any], seconds: float) -> Iterator[Any]:
    """The same batches, each after a while."""
    for batch in batches:
        time.sleep(seconds)
        yield batch


def trained(job: dict[str, Any]) -> None:
    """Train a job, which leaves its traces."""
    config = Config.from_dict(job["config"] | {"layout": {"label": job["label"]}})
    trainer = Trainer(config, config.layout_for(dist.get_world_size()), pick_device())
    seconds = job.get("nap", 0.0) * (2 if job.get("slow_rank") == dist.get_rank() else 1)
    if job.get("slow_loader") and dist.get_rank() == 0:
        trainer.batches = slowly(trainer.batches, job["slow_loader"])
    plain = Block.forward
    if seconds:
        Block.forward = with_naps(seconds)  # type: ignore[method-assign]
    directory = RunDirectory(Path(config.run.directory) / config.run.name).create()
    profiler = Profiler(trainer, directory, Console(quiet=True))
    try:
        trainer.fit([], profiler)
        profiler.finish()
    finally:
        Block.forward = plain  # type: ignore[method-assign]
        profiler.close()
        trainer.close()


def main(jobs_file: str) -> None:
    with process_group(pick_device(), 120):
        for job in json.loads(Path(jobs_file).read_text()):
            trained(job)
        dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
