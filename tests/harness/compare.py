"""How far a layout's training is from the reference, and how far it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

TOLERANCES = {"fp64": (1e-10, 1e-9), "fp32": (1e-5, 1e-4)}
"""By precision: of losses and gradient norms, and of final parameters, both relative."""


@dataclass(frozen=True)
class Distance:
    """Largest relative differences; NaN counts as infinitely far."""

    loss: float
    norm: float
    parameters: float
    digests_equal: bool

    def within(self, precision: str) -> bool:
        step, parameters = TOLERANCES[precision]
        return self.loss <= step and self.norm <= step and self.parameters <= parameters and self.digests_equal

    def __str__(self) -> str:
        digests = "equal" if self.digests_equal else "DIFFERENT"
        return f"loss {self.loss:.1e}  norm {self.norm:.1e}  parameters {self.parameters:.1e}  digests {digests}"


def distance(ours: dict[str, Any], reference: dict[str, Any]) -> Distance:
    """Compare two outcomes of training (see `train_plainly`)."""
    assert ours["parameters"].keys() == reference["parameters"].keys()
    return Distance(
        loss=_largest(ours["losses"], reference["losses"]),
        norm=_largest(ours["norms"], reference["norms"]),
        parameters=max(_apart(tensor, reference["parameters"][name]) for name, tensor in ours["parameters"].items()),
        digests_equal=ours["digests"] == reference["digests"],
    )


def _largest(ours: list[float], reference: list[float]) -> float:
    pairs = zip(ours, reference, strict=True)
    return max(_or_infinite(abs(own - other) / abs(other)) for own, other in pairs)


def _apart(ours: torch.Tensor, reference: torch.Tensor) -> float:
    assert ours.shape == reference.shape
    return _or_infinite(((ours - reference).norm() / reference.norm()).item())


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value
