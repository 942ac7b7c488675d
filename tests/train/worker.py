"""Runs experiments of test_trainer.py in one launch of torchrun: worker.py JOBS.json RESULTS.pt.

JOBS.json: a list of {"name", "experiment", "label", "config"}; RESULTS.pt: what each came to, by its name.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import itertools

from harness.worker import whole_parameters
from torchlayout.config import Config
from torchlayout.model.initialize import held_part
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.evaluate import Evaluation
from torchlayout.train.exchange import RanksDisagree
from torchlayout.train.leave import leave
from torchlayout.train.trainer import StepResult, Trainer


@contextmanager
def training(label: str, raw: dict[str, Any]) -> Iterator[Trainer]:
    config = Config.from_dict(raw | {"layout": {"label": label}})
    layout = config.layout_for(dist.get_world_size())
    assert config.check(layout.world) == []
    trainer = Trainer(config, layout, pick_device())
    try:
        yield trainer
    finally:
        trainer.close()


def from_every_rank(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class Recorder:
    """Keeps the results that come out of the observers before it."""

    def __init__(self) -> None:
        self.results: list[StepResult] = []

    def after_step(self, trainer: Trainer, result: StepResult) -> StepResult:
        # The one thing that differs between ranks.
        self.results.append(replace(result, seconds=0.0))
        return result


def trained(label: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Results of all steps on every rank, with evaluation where the configuration has it; the final weights."""
    with training(label, raw) as trainer:
        initial, recorder = whole_parameters(trainer), Recorder()
        trainer.fit([Evaluation(), recorder])
        return {
            "results_by_rank": from_every_rank(recorder.results),
            "initial": initial,
            "initial_weights_digest": trainer.initial_weights_digest,
            "parameters": whole_parameters(trainer),
        }


def one_bad_step(label: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Four steps; in the second the last rank's last block gives NaN."""
    with training(label, raw) as trainer:
        results, states = [trainer.step()], [local_state(trainer)]
        block = list(trainer.model.parts[-1].layers.values())[-1]
        last = dist.get_rank() == dist.get_world_size() - 1
        plant = block.register_forward_hook(lambda module, given, output: output * (math.nan if last else 1.0))
        for _ in range(3):
            results.append(trainer.step())
            states.append(local_state(trainer))
            plant.remove()
        return {
            "results_by_rank": from_every_rank([replace(result, seconds=0.0) for result in results]),
            "unchanged_by_rank": from_every_rank(
                [same_bits(before, after) for before, after in itertools.pairwise(states)]
            ),
            "skipped_in_a_row": trainer.skipped_in_a_row,
        }


def local_state(trainer: Trainer) -> list[Tensor]:
    """Copies of this rank's weights and of the optimizer's moments and step counts."""
    moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
    return [held_part(tensor).local.detach().clone() for tensor in [*trainer.model.parameters(), *moments]]


def same_bits(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def other_samples_on_the_last_rank(label: str, raw: dict[str, Any]) -> list[str]:
    """What each rank raises when the last one is given the samples of another step, at equal steps before."""
    with training(label, raw) as trainer:
        trainer.step()
        if dist.get_rank() == dist.get_world_size() - 1:
            next(trainer.batches)
        try:
            trainer.step()
        except RanksDisagree as error:
            return from_every_rank(str(error))
        return from_every_rank("nothing")


EXPERIMENTS = {function.__name__: function for function in (trained, one_bad_step, other_samples_on_the_last_rank)}


def main(jobs_file: str, results_file: str) -> None:
    jobs = json.loads(Path(jobs_file).read_text())
    with process_group(pick_device(), 120):
        outcomes = {job["name"]: EXPERIMENTS[job["experiment"]](job["label"], job["config"]) for job in jobs}
        if dist.get_rank() == 0:
            torch.save(outcomes, results_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
