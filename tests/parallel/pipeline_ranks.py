"""What test_pipeline.py runs on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.worker import whole_parameters
from torchlayout.config import Config
from torchlayout.data.loader import evaluation_batches
from torchlayout.model.initialize import held_part
from torchlayout.parallel.microbatches import DeviceBatch
from torchlayout.parallel.pipeline.stages import Boundary
from torchlayout.train.environment import pick_device
from torchlayout.train.trainer import Trainer


def built(label: str, raw: dict[str, Any]) -> Trainer:
    config = Config.from_dict(raw | {"layout": {"label": label}})
    layout = config.layout_for(dist.get_world_size())
    assert config.check(layout.world) == []
    return Trainer(config, layout, pick_device())


def evaluated(trainer: Trainer) -> float:
    config = trainer.config
    return trainer.evaluate(
        evaluation_batches(
            trainer.corpus,
            config.data,
            global_batch=config.batch.global_size,
            batches=config.train.evaluate_batches,
            rank=trainer.meshes.data_rank,
            world=trainer.layout.data_ranks,
        )
    )


def trained(label: str, raw: dict[str, Any], evaluations: bool) -> dict[str, Any]:
    """Losses of all steps, the held-out loss before the first and after each, and the last weights."""
    trainer = built(label, raw)
    initial = whole_parameters(trainer)
    held_out = [evaluated(trainer)] if evaluations else []
    results = []
    for _ in range(trainer.config.train.steps):
        results.append(trainer.step())
        held_out += [evaluated(trainer)] if evaluations else []
    trainer.close()
    return {
        "steps": [(result.loss, result.grad_norm) for result in results],
        "held out": held_out,
        "initial": initial,
        "parameters": whole_parameters(trainer),
    }


def gradients_around_an_evaluation(label: str, raw: dict[str, Any]) -> bool:
    """Whether an evaluation between backward and update leaves every gradient as it was, to the bit."""
    trainer = built(label, raw)
    batch = DeviceBatch.of(trainer.held_part(next(trainer.batches)), trainer.device)
    trainer.model.step.forward_backward(batch, torch.ones((), dtype=torch.float64))
    before = [gradient.clone() for gradient in _gradients(trainer)]
    evaluated(trainer)
    after = _gradients(trainer)
    trainer.close()
    return all(torch.equal(old, new) for old, new in zip(before, after, strict=True)) and len(before) > 0


def _gradients(trainer: Trainer) -> list[Tensor]:
    return [held_part(p.grad).local for p in trainer.model.parameters() if p.grad is not None]


def tied_copies(label: str, raw: dict[str, Any]) -> dict[str, bool]:
    """On ranks that hold both ends of a tied model: whether the copies start, get gradients and stay equal."""
    trainer = built(label, raw)
    tied = trainer.model.tied
    assert tied is not None
    if tied.embedding is None or tied.head is None:
        trainer.step()
        trainer.step()
        trainer.close()
        return {}
    assert tied.embedding is not tied.head
    equal = {"at the start": _same(tied.embedding, tied.head)}
    finish, seen = tied.synchronise_gradients, []

    def watched() -> None:
        seen.append([held_part(copy.grad).local.clone() for copy in (tied.embedding, tied.head)])
        finish()
        seen.append([held_part(copy.grad).local.clone() for copy in (tied.embedding, tied.head)])

    tied.synchronise_gradients = watched  # type: ignore[method-assign]
    trainer.step()
    (embedding, head), (summed, copied) = seen
    equal |= {
        "the ends' gradients": torch.equal(embedding, head),
        "their sums": torch.equal(summed, copied) and torch.equal(summed, embedding + head),
    }
    trainer.step()
    trainer.close()
    return equal | {"after two steps": _same(tied.embedding, tied.head)}


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(held_part(one).local, held_part(other).local)


def crossing_shapes(label: str, raw: dict[str, Any]) -> dict[str, Any]:
    """What crosses from stage to stage: what parts take and give, beside what the boundary says."""
    trainer = built(label, raw)
    boundary = Boundary.of(trainer.config, trainer.layout, torch.float64, trainer.device)
    crossing: set[tuple[tuple[int, ...], torch.dtype]] = set()

    def given(module: Any, arguments: tuple[Tensor, ...], options: Any) -> None:
        if module.embedding is None:
            crossing.add((tuple(arguments[0].shape), arguments[0].dtype))

    def returned(module: Any, arguments: Any, output: Tensor) -> None:
        if module.head is None:
            crossing.add((tuple(output.shape), output.dtype))

    for part in trainer.model.parts:
        part.register_forward_pre_hook(given, with_kwargs=True)
        part.register_forward_hook(returned)
    trainer.step()
    evaluated(trainer)
    trainer.close()
    example = boundary.hidden_states()
    return {"crossing": crossing, "boundary": (tuple(example.shape), example.dtype)}
