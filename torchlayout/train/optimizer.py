"""AdamW, learning-rate schedules, and clipping that is right across pipeline, tensor and data axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torchlayout.config import OptimizerSection


def build_optimizer(
    parameters: Iterable[nn.Parameter], config: OptimizerSection, device: torch.device
) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101); matrices decay, norms do not."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in parameters:
        groups[parameter.ndim >= 2].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": params, "weight_decay": config.weight_decay if decays else 0.0}
            for decays, params in groups.items()
            if params
        ],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        fused=device.type == "cuda" if config.fused is None else config.fused,
    )


def learning_rate(step: int, steps: int, config: OptimizerSection) -> float:
    """The rate of step `step` (from 1) of `steps`: linear warm-up, then decay to minimum_ratio of the peak.

    wsd (warm-up, stable, decay; arXiv 2404.06395) stays at the peak until the last `decay_fraction` of the steps.
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    start = config.warmup_steps
    if config.decay == "wsd":
        start = max(start, steps - round(config.decay_fraction * steps))
    done = min(1.0, max(0.0, (step - start) / max(1, steps - start)))
    shape = {
        "constant": 1.0,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "linear": 1 - done,
        "wsd": 1 - done,
    }[config.decay]
    return config.learning_rate * (config.minimum_ratio + (1 - config.minimum_ratio) * shape)


def squared_gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Sum of squares, fp64, over this rank's part of the gradients of `parameters`.

    Given parameters that no other rank answers for as well, its sum over all ranks is the squared norm of the whole
    model's gradient, whatever meshes they live on.
    """
    return torch.nn.utils.get_total_norm([_local_gradient(parameter) for parameter in parameters]).double() ** 2


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float, limit: float) -> None:
    """Scale every gradient by limit / norm where norm exceeds the limit, in place."""
    coefficient = limit / (norm + 1e-6)
    if coefficient >= 1:
        return
    for parameter in parameters:
        _local_gradient(parameter).mul_(coefficient)


def _local_gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
