"""What a run continues: its own newest sound checkpoint, another one that is named, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from rich.console import Console

from torchlayout.checkpoint import Checkpoint, Checkpoints
from torchlayout.config import Config
from torchlayout.data.corpus import Corpus
from torchlayout.errors import InputError
from torchlayout.records import RunDirectory

Value = TypeVar("Value")
RESTARTS = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
REMEDY = {
    "model": "name the same model, or start a new run",
    "batch": "steps are counted in batches of one size; set it back, or start a new run from the weights",
    "run": "set it back, or start a new run",
    "data": "give the data it was begun with, or start a new run from its weights",
}


@dataclass(frozen=True)
class Beginning:
    """From where a run goes on; None: from step 1. passed_over: newer checkpoints that are damaged."""

    checkpoint: Checkpoint | None
    passed_over: frozenset[Path] = frozenset()


def beginning(config: Config, directory: RunDirectory, console: Console) -> Beginning:
    """Where this run goes on, verified and fitting, the same on every rank; a collective call that changes nothing.

    Raises InputError rather than start over where something is there already that cannot be continued, and where a
    checkpoint is of another model or of data in another order.
    """
    own = _shared(Checkpoints(directory.checkpoints_path).committed())
    begun = bool(own) or _shared(directory.metrics_path.exists())
    # Under "never" ranks that torchrun started anew go on with what this very run has saved.
    if begun and config.checkpoint.resume == "never" and RESTARTS == 0:
        raise _already(directory, 'and checkpoint.resume = "never"')
    faults: list[str] = []
    for place, checkpoint in enumerate(reversed(own)):
        found = _faults(checkpoint)
        if not found:
            _refuse_another_run(config, checkpoint)
            return Beginning(checkpoint, frozenset(newer.path for newer in own[len(own) - place :]))
        console.print(f"passed over {checkpoint.path}: {'; '.join(found)}")
        faults += found
    if faults:
        raise InputError(
            f"no checkpoint in {directory.checkpoints_path} is sound ({'; '.join(faults)}); "
            "put a good copy back, or start anew under another run.name"
        )
    if begun and RESTARTS == 0:
        raise _already(directory, "and no checkpoint to continue")
    if begun:
        console.print(f"restart {RESTARTS} by torchrun before the first checkpoint: starting from the beginning again")
    if config.checkpoint.resume in ("auto", "never"):
        return Beginning(None)
    return Beginning(_named(config))


def _already(directory: RunDirectory, why: str) -> InputError:
    return InputError(
        f"run.name = {directory.path.name!r}: {directory.path} already holds a run, {why}; "
        "choose another run.name or run.directory, or move that folder away"
    )


def _named(config: Config) -> Checkpoint:
    """The checkpoint, or the newest of the run, that checkpoint.resume names."""
    path = Path(config.checkpoint.resume)
    newest = _shared(Checkpoints(path).committed() or Checkpoints(path / "checkpoints").committed())
    checkpoint = newest[-1] if newest else Checkpoint(path)
    faults = _faults(checkpoint)
    if faults:
        raise InputError(f"checkpoint.resume = {str(path)!r} cannot be continued: {'; '.join(faults)}")
    _refuse_another_run(config, checkpoint)
    if checkpoint.step >= config.train.steps:
        raise InputError(
            f"checkpoint.resume = {str(path)!r} is at step {checkpoint.step} of train.steps = {config.train.steps}; "
            f"legal: {checkpoint.step + 1} or more"
        )
    return checkpoint


def order_facts(config: Config, corpus: Corpus) -> dict[str, Any]:
    """What the samples and their order depend on beside the seed."""
    data = config.data
    return {
        "corpus": corpus.manifest.sha256,
        "sequence_length": data.sequence_length,
        "shuffle": data.shuffle,
        "evaluation_fraction": data.evaluation_fraction,
        "within_documents": data.within_documents,
    }


def _refuse_another_run(config: Config, checkpoint: Checkpoint) -> None:
    """Raise InputError where the checkpoint is of another model, or of data in another order."""
    state = checkpoint.index.state
    problems = list(_differences("model", state["model"], config.model.model_dump(mode="json")))
    if state["data"] is not None:  # else weights that were imported, of no run yet
        theirs, ours = state["config"], config.tables()
        problems += _differences("run", {"seed": theirs["run"]["seed"]}, {"seed": ours["run"]["seed"]})
        problems += _differences("batch", theirs["batch"], ours["batch"])
        problems += _differences("data", state["order"], order_facts(config, Corpus.open(config.data.path)))
    if problems:
        raise InputError(*(f"{checkpoint.path} {problem}" for problem in problems))


def _differences(section: str, theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    for key, value in ours.items():
        if theirs.get(key) != value:
            yield f"was written with {section}.{key} = {theirs.get(key)}, this run has {value}; {REMEDY[section]}"


def _faults(checkpoint: Checkpoint) -> list[str]:
    """What is wrong with a checkpoint; each rank reads its share of the files."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    by_rank: list[list[str]] = [[] for _ in range(ranks)]
    dist.all_gather_object(by_rank, list(checkpoint.faults(rank, ranks)))
    return list(dict.fromkeys(fault for faults in by_rank for fault in faults))


def _shared(value: Value) -> Value:
    """Rank 0's value, on every rank: folders may change while ranks look."""
    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]
