"""Calls functions on every rank of one launch of torchrun: ranks.py CALLS.json RESULTS.pt.

CALLS.json: a list of {"function": "parallel.module:name", "arguments": {...}}; RESULTS.pt: for each call, what the
function returned on every rank. Starting ranks takes longer than most of what they do, so a launch has many calls.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist

from harness.launch import torchrun
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.leave import leave


@dataclass(frozen=True)
class Call:
    """A function of this folder, as "module:name", and its keyword arguments (JSON values)."""

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)


def on_ranks(ranks: int, calls: dict[str, Call], folder: Path) -> dict[str, list[Any]]:
    """What each call, by its name, returned on every rank."""
    calls_file, results_file = folder / f"calls-{ranks}.json", folder / f"results-{ranks}.pt"
    calls_file.write_text(json.dumps([asdict(call) for call in calls.values()]))
    done = torchrun(ranks, str(Path(__file__)), str(calls_file), str(results_file))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return dict(zip(calls, torch.load(results_file, weights_only=False), strict=True))


def main(calls_file: str, results_file: str) -> None:
    outcomes = []
    with process_group(pick_device(), 120):
        for call in json.loads(Path(calls_file).read_text()):
            module, name = call["function"].split(":")
            returned = getattr(importlib.import_module(f"parallel.{module}"), name)(**call["arguments"])
            by_rank = [None] * dist.get_world_size()
            dist.all_gather_object(by_rank, returned)
            outcomes.append(by_rank)
        if dist.get_rank() == 0:
            torch.save(outcomes, results_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
