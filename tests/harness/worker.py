"""Trains a list of layouts, one after the other, in one launch of torchrun: worker.py JOBS.json RESULTS.pt.

JOBS.json: a list of {"label", "config"}; RESULTS.pt: for each, what `train_plainly` returns.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchlayout.config import Config
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.leave import leave
from torchlayout.train.trainer import Trainer


def train_in_layout(label: str, raw: dict[str, Any]) -> dict[str, Any]:
    config = Config.from_dict(raw | {"layout": {"label": label}})
    layout = config.layout_for(dist.get_world_size())
    assert config.check(layout.world) == []
    trainer = Trainer(config, layout, pick_device())
    results = [trainer.step() for _ in range(config.train.steps)]
    outcome = {
        "losses": [result.loss for result in results],
        "norms": [result.grad_norm for result in results],
        "digests": [result.batch_digest for result in results],
        "initial_weights_digest": trainer.initial_weights_digest,
        "parameters": whole_parameters(trainer),
    }
    trainer.close()
    return outcome


def whole_parameters(trainer: Trainer) -> dict[str, Tensor]:
    """The model's parameters by name, put together from all ranks."""
    own: dict[str, Tensor] = {}
    for name, parameter in trainer.model.named_parameters():
        full = getattr(parameter, "full_tensor", lambda parameter=parameter: parameter)()
        own[name] = full.detach().double().cpu()
    everyone: list[dict[str, Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    together: dict[str, Tensor] = {}
    for held in everyone:
        for name, tensor in held.items():
            assert torch.equal(together.setdefault(name, tensor), tensor), f"ranks disagree on {name}"
    return together


def main(jobs_file: str, results_file: str) -> None:
    jobs = json.loads(Path(jobs_file).read_text())
    with process_group(pick_device(), 120):
        outcomes = [train_in_layout(job["label"], job["config"]) for job in jobs]
        if dist.get_rank() == 0:
            torch.save(outcomes, results_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
