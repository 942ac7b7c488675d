"""Runs what test_profiler.py profiles, in one launch of torchrun: profiler_ranks.py JOBS.json RESULTS.pt.

JOBS.json: a list of {"name", "label", "config"}; traces go to config.run.directory/config.run.name. RESULTS.pt: for
each what training came to, the same on every rank, and what every rank marked in each step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch.profiler import record_function

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchlayout.config import Config
from torchlayout.records import RunDirectory
from torchlayout.train import profiler as profiling
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.evaluate import Evaluation
from torchlayout.train.leave import leave
from torchlayout.train.profiler import Profiler
from torchlayout.train.trainer import StepResult, Trainer


class Watch:
    """Counts the ranges that are opened until a step's end, and keeps the step's result."""

    def __init__(self) -> None:
        self.results: list[StepResult] = []
        self.opened: list[int] = []
        self.ranges = 0
        self.record_function = record_function

    def __call__(self, name: str) -> Any:
        self.ranges += 1
        return self.record_function(name)

    def after_step(self, trainer: Trainer, result: StepResult) -> StepResult:
        self.results.append(result)
        self.opened.append(self.ranges)
        self.ranges = 0
        return result


def trained(label: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Train as `run` does, evaluation included."""
    config = Config.from_dict(raw | {"layout": {"label": label}})
    layout = config.layout_for(dist.get_world_size())
    assert config.check(layout.world) == []
    trainer, watch = Trainer(config, layout, pick_device()), Watch()
    directory = RunDirectory(Path(config.run.directory) / config.run.name)
    profiling.record_function = watch  # type: ignore[assignment]
    profiler = Profiler(trainer, directory, Console(quiet=dist.get_rank() != 0))
    try:
        trainer.fit([Evaluation(), watch], profiler)
        profiler.finish()
    finally:
        profiler.close()
        profiling.record_function = watch.record_function
        trainer.close()
    opened: list[list[int]] = [[]] * layout.world
    dist.all_gather_object(opened, watch.opened)
    return {
        "losses": [(result.loss, result.grad_norm, result.evaluation_loss) for result in watch.results],
        "weights": trainer.weights_digest(),
        "opened_by_rank": opened,
    }


def main(jobs_file: str, results_file: str) -> None:
    jobs = json.loads(Path(jobs_file).read_text())
    with process_group(pick_device(), 120):
        outcomes = {job["name"]: trained(job["label"], job["config"]) for job in jobs}
        if dist.get_rank() == 0:
            torch.save(outcomes, results_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
