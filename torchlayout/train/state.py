"""A trainer's state by names of the whole model, which mean the same in every layout; saved and loaded as such."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load

from torchlayout.checkpoint import Checkpoint
from torchlayout.checkpoint.storage import FolderReader
from torchlayout.errors import InputError
from torchlayout.model.initialize import held_part
from torchlayout.train.resume import order_facts
from torchlayout.train.trainer import Trainer

MOMENTS = ("exp_avg", "exp_avg_sq")


def tensors(trainer: Trainer) -> dict[str, Tensor]:
    """Everything of the state that is a tensor: parameters, AdamW's moments, the state of random generators."""
    named = {f"model.{name}": copies[0] for name, copies in _copies(trainer).items()}
    moments = {
        f"optimizer.{moment}.{name}": trainer.optimizer.state[copies[0]][moment]
        for name, copies in _copies(trainer).items()
        for moment in MOMENTS
        if copies[0] in trainer.optimizer.state
    }
    return named | moments | _random_states(trainer.device)


def facts(trainer: Trainer) -> dict[str, Any]:
    """Everything of the state that is a value: where training is, and what it was told to do."""
    return {
        "step": trainer.steps_done,
        "data": trainer.loader.state_dict(),
        "order": order_facts(trainer.config, trainer.corpus),
        "optimizer_steps": _optimizer_steps(trainer),
        "skipped_in_a_row": trainer.skipped_in_a_row,
        "initial_weights_digest": trainer.initial_weights_digest,
        "layout": str(trainer.layout),
        "world": trainer.layout.world,
        "model": trainer.config.model.model_dump(mode="json"),
        "config": trainer.config.tables(),
    }


def load_state(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Continue from a checkpoint, written in any layout; a collective call.

    It must be of this model and data (see `beginning`). Raises InputError where it lacks a tensor.
    """
    index = checkpoint.index
    state = index.state
    if state["data"] is not None:
        trainer.loader.load_state_dict(state["data"])
    if state["optimizer_steps"]:
        _make_moments(trainer, state["optimizer_steps"])

    missing = [name for name in tensors(trainer) if not name.startswith("random.") and name not in index.tensors]
    if missing:
        raise InputError(f"{checkpoint.path} has no {', '.join(missing)}; import or save it anew")
    wanted = {name: tensor for name, tensor in tensors(trainer).items() if name in index.tensors}
    try:
        load(wanted, storage_reader=FolderReader(checkpoint), planner=DefaultLoadPlanner())
    except CheckpointException as error:
        raise RuntimeError(f"{checkpoint.path} could not be loaded: {error}") from error
    _copy_to_copies(trainer)
    _restore_random_states(wanted, trainer.device)
    trainer.steps_done, trainer.skipped_in_a_row = state["step"], state["skipped_in_a_row"]
    # Imported weights have never been the start of a run yet.
    trainer.initial_weights_digest = state.get("initial_weights_digest") or trainer.weights_digest()


def save_planner() -> DefaultSavePlanner:
    """Replicas share the writing by size, rather than the lowest rank doing all of it."""
    return DefaultSavePlanner(dedup_save_to_lowest_rank=False)


def _copies(trainer: Trainer) -> dict[str, list[nn.Parameter]]:
    """The parameters of this rank by name; a tied embedding at both ends of a V is two copies under one name."""
    by_name: dict[str, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in trainer.copies:
        by_name[name].append(parameter)
    return by_name


@torch.no_grad()
def _copy_to_copies(trainer: Trainer) -> None:
    for copies in _copies(trainer).values():
        for copy in copies[1:]:
            held_part(copy).local.copy_(held_part(copies[0]).local)
            for moment in MOMENTS if copy in trainer.optimizer.state else ():
                source, target = (trainer.optimizer.state[parameter][moment] for parameter in (copies[0], copy))
                held_part(target).local.copy_(held_part(source).local)


def _optimizer_steps(trainer: Trainer) -> int:
    """How many updates AdamW has made; the same for every parameter, a step that was skipped not counted."""
    return next((int(state["step"]) for state in trainer.optimizer.state.values()), 0)


def _make_moments(trainer: Trainer, steps: int) -> None:
    """Give every parameter the state that AdamW would make in its first step, to be loaded into."""
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            device = parameter.device if group["fused"] else "cpu"
            trainer.optimizer.state[parameter] = {
                "step": torch.tensor(float(steps), dtype=torch.float32, device=device),
                **{moment: torch.zeros_like(parameter, requires_grad=False) for moment in MOMENTS},
            }


def _random_states(device: torch.device) -> dict[str, Tensor]:
    """Training draws nothing at random, so all ranks have the same states."""
    states = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def _restore_random_states(loaded: dict[str, Tensor], device: torch.device) -> None:
    if "random.cpu" in loaded:
        torch.set_rng_state(loaded["random.cpu"])
    if "random.cuda" in loaded:
        torch.cuda.set_rng_state(loaded["random.cuda"], device)
