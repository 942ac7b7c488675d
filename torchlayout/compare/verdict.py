"""Whether layouts were compared fairly and train the same model: pure functions over the evidence of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchlayout.compare.evidence import Evidence
from torchlayout.tables import shown

# Largest relative difference of losses and of gradient norms that rounding alone explains, by precision. The layouts
# add in another order, and training doubles such a difference every few steps: in fp32 gradient norms of the quickstart
# differ by 1e-7 at step 1 and by 5e-5 at step 40. A wrong scale, sample or weight is a difference of 1e-2 and more.
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "fp64": (1e-9, 1e-8),
    "fp32": (1e-4, 2e-3),
    "bf16": (1e-2, 1e-1),
}


@dataclass(frozen=True)
class Fairness:
    """Whether a run had the terms of the baseline, aspect by aspect, and what differed."""

    data: bool
    weights: bool
    tokens: bool
    optimizer: bool
    settings: bool
    software: bool
    problems: tuple[str, ...]

    @property
    def fair(self) -> bool:
        """Whether nothing differed."""
        return not self.problems


@dataclass(frozen=True)
class Distance:
    """The largest relative difference and the step where it is; infinite where only one of the two is a number."""

    value: float
    step: int | None


@dataclass(frozen=True)
class Parity:
    """How far losses and gradient norms are from the baseline's, and how far they may be."""

    loss: Distance
    norm: Distance
    loss_tolerance: float
    norm_tolerance: float

    @property
    def within(self) -> bool:
        """Whether both are within their tolerances."""
        return self.loss.value <= self.loss_tolerance and self.norm.value <= self.norm_tolerance

    def problems(self, run: str, baseline: str) -> Iterator[str]:
        """A sentence for each figure that is too far off."""
        for name, distance, tolerance in (
            ("loss", self.loss, self.loss_tolerance),
            ("gradient norm", self.norm, self.norm_tolerance),
        ):
            if distance.value > tolerance:
                apart = f"{distance.value:.1e} (relative)" if math.isfinite(distance.value) else "not a number in one"
                yield (
                    f"{run}: the {name} of step {distance.step} differs from that of {baseline} by {apart}, "
                    f"more than the tolerance of {tolerance:.0e}; it does not train the same model"
                )


def fairness(run: Evidence, baseline: Evidence) -> Fairness:
    """Compare the terms of a run with those of the baseline."""
    aspects = {
        "data": _data(run, baseline),
        "weights": _weights(run, baseline),
        "tokens": _tokens(run, baseline),
        "optimizer": [*_settings(run, baseline, of_optimizer=True), *_learning_rates(run, baseline)],
        "settings": _settings(run, baseline, of_optimizer=False),
        "software": _surroundings(run, baseline),
    }
    problems = tuple(f"{run}: {problem}" for found in aspects.values() for problem in found)
    return Fairness(**{aspect: not found for aspect, found in aspects.items()}, problems=problems)


def parity(run: Evidence, baseline: Evidence, precision: str) -> Parity:
    """Compare the losses and gradient norms of a run with those of the baseline; precision: "bf16", "fp32", "fp64"."""
    loss_tolerance, norm_tolerance = TOLERANCES[precision]
    return Parity(
        _distance(run.steps, baseline.steps, "loss"),
        _distance(run.steps, baseline.steps, "grad_norm"),
        loss_tolerance,
        norm_tolerance,
    )


def _distance(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], key: str) -> Distance:
    largest = Distance(0.0, None)
    others = {step["step"]: step[key] for step in theirs}
    for step in ours:
        if step["step"] in others:
            apart = _apart(step[key], others[step["step"]])
            if largest.step is None or apart > largest.value:
                largest = Distance(apart, step["step"])
    return largest


def _apart(own: float | None, other: float | None) -> float:
    if own is None or other is None:
        return 0.0 if own is other else math.inf
    if own == other:
        return 0.0
    return abs(own - other) / max(abs(other), 1e-300)


def _data(run: Evidence, baseline: Evidence) -> list[str]:
    return _by_step(run, baseline, "batch_digest", "it was trained on other samples, or in another order")


def _tokens(run: Evidence, baseline: Evidence) -> list[str]:
    if len(run.steps) != len(baseline.steps):
        return [f"it has {len(run.steps)} steps, and {baseline} has {len(baseline.steps)}"]
    return _by_step(run, baseline, "tokens", "its steps consume another number of tokens")


def _learning_rates(run: Evidence, baseline: Evidence) -> list[str]:
    return _by_step(run, baseline, "learning_rate", "its optimizer was set differently")


def _by_step(run: Evidence, baseline: Evidence, key: str, meaning: str) -> list[str]:
    """The first step in which the two differ."""
    for own, other in zip(run.steps, baseline.steps, strict=False):
        if own[key] != other[key]:
            return [f"{key} of step {own['step']} is {own[key]}, and {other[key]} in {baseline}: {meaning}"]
    return []


def _weights(run: Evidence, baseline: Evidence) -> list[str]:
    own, other = (each.facts.get("initial_weights_digest") for each in (run, baseline))
    if own == other and own is not None:
        return []
    return [f"initial_weights_digest is {own}, and {other} in {baseline}: it started from other weights"]


def _settings(run: Evidence, baseline: Evidence, *, of_optimizer: bool) -> list[str]:
    keys = [key for key in sorted({*run.settings, *baseline.settings}) if key.startswith("optimizer.") == of_optimizer]
    return [
        f"{key} is {shown(run.settings.get(key))}, and {shown(baseline.settings.get(key))} in {baseline}"
        for key in keys
        if run.settings.get(key) != baseline.settings.get(key)
    ]


def _surroundings(run: Evidence, baseline: Evidence) -> list[str]:
    own, other = _fingerprint(run), _fingerprint(baseline)
    return [
        f"{key} is {shown(own.get(key))}, and {shown(other.get(key))} in {baseline}"
        for key in sorted(own | other)
        if own.get(key) != other.get(key)
    ]


def _fingerprint(run: Evidence) -> dict[str, Any]:
    facts = {
        f"{part}.{key}": value for part in ("software", "hardware") for key, value in run.facts.get(part, {}).items()
    }
    if facts.get("hardware.device") != "cpu":
        # GPUs say what they are, and an allocation gives another node each time; "x86_64" says nothing of a CPU.
        facts.pop("hardware.host", None)
    return facts
