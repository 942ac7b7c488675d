"""What needs no planner, for its accuracy to be seen beside: a constant MFU, 6 N with a bubble, and a rule of thumb."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchlayout.plan.measured.predict import Prediction, timed
from torchlayout.plan.measured.regret import fastest

BLIND_MFU = 0.45
RULE = "no checkpointing, micro-batch 1, smallest tp x pp that fits"
KERNELS = ("flash2", "flash", "flash1", "fused-softmax", "unfused")
"""Attention kernels, the fastest first."""


def constant_mfu(prediction: Prediction) -> float:
    """Seconds of a step where every layout has the same MFU."""
    return prediction.model_flops / (BLIND_MFU * prediction.peak_flops)


def flops_and_bubble(prediction: Prediction) -> float:
    """Seconds of a step from 6 N a token (8 N where all is recomputed) and the bubble of 1F1B."""
    job, layout = prediction.run.job, prediction.run.job.layout
    attention = 12 * job.model.num_hidden_layers * job.model.hidden_size * job.sequence
    flops = prediction.model_flops - job.batch * job.sequence * attention
    if layout.recompute == "ckpt":
        flops *= 8 / 6
    bubble = (layout.pipeline - 1) / (job.micro_batches * layout.virtual_stages)
    return flops / (BLIND_MFU * prediction.peak_flops) * (1 + bubble)


FORMULAS: dict[str, Callable[[Prediction], float]] = {
    "constant MFU of 45%": constant_mfu,
    "6N + bubble at 45% of the peak": flops_and_bubble,
}


def baselines(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Predictions with the seconds of each formula; memory stays the planner's, so that what differs is time."""
    return {name: [replace(p, seconds=formula(p)) for p in predictions] for name, formula in FORMULAS.items()}


def scaled(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Predictions times the median of measured over predicted of these very runs: the best that hindsight can do."""
    ratios = [p.measured_seconds / p.seconds for p in timed(predictions)]
    scale = statistics.median(ratios) if ratios else 1.0
    return [replace(p, seconds=scale * p.seconds) for p in predictions]


def rule_of_thumb(predictions: Sequence[Prediction]) -> list[Prediction]:
    """No checkpointing, micro-batch 1, the smallest tp x pp (of equal ones that with the smaller tp, and the fastest
    kernels); of those that are given, which are predicted to fit."""
    obeying = [
        prediction
        for prediction in fastest(predictions)
        if prediction.run.job.layout.recompute == "none" and prediction.run.job.layout.micro_batch == 1
    ]
    return sorted(obeying, key=_size)


def _size(prediction: Prediction) -> tuple[int, int, int, bool, bool]:
    job, layout = prediction.run.job, prediction.run.job.layout
    kernel = KERNELS.index(job.attention)
    return layout.tensor * layout.pipeline, layout.tensor, kernel, layout.norm != "fused", not layout.sequence_parallel
