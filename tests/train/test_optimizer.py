from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from torchlayout.config import OptimizerSection
from torchlayout.train.optimizer import build_optimizer, clip_gradients, learning_rate, squared_gradient_norm

CPU = torch.device("cpu")
STEPS = 20


def section(**changes: Any) -> OptimizerSection:
    return OptimizerSection(**({"learning_rate": 2.0, "warmup_steps": 4, "minimum_ratio": 0.25} | changes))


def rates(**changes: Any) -> list[float]:
    """The rates of steps 1 to STEPS."""
    return [learning_rate(step, STEPS, section(**changes)) for step in range(1, STEPS + 1)]


def network() -> nn.Module:
    """Two matrices and a vector, always the same, that were given gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7, bias=False), nn.RMSNorm(7), nn.Linear(7, 3, bias=False)).double()
    give_gradients(model, 1)
    return model


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant", "wsd"])
def test_the_rate_rises_linearly_to_its_peak_at_the_last_warm_up_step(decay: str) -> None:
    assert rates(decay=decay)[:4] == [0.5, 1.0, 1.5, 2.0]
    assert learning_rate(1, STEPS, section(decay=decay, warmup_steps=0)) > 1.9


@pytest.mark.parametrize(
    ("decay", "last", "middle"),
    [("cosine", 0.5, 1.25), ("linear", 0.5, 1.25), ("constant", 2.0, 2.0), ("wsd", 0.5, 2.0)],
)
def test_the_rate_falls_without_a_rise_to_the_minimum_at_the_last_step(decay: str, last: float, middle: float) -> None:
    after_peak = rates(decay=decay)[3:]
    assert all(later <= earlier for earlier, later in itertools.pairwise(after_peak))
    assert math.isclose(after_peak[-1], last)
    assert math.isclose(after_peak[8], middle)


def test_cosine_and_linear_have_their_shapes() -> None:
    assert math.isclose(rates(decay="cosine")[7], 0.5 + 1.5 * (1 + math.cos(math.pi / 4)) / 2)
    assert math.isclose(rates(decay="linear")[7], 0.5 + 1.5 * 0.75)


def test_wsd_stays_at_the_peak_until_the_last_fraction_and_falls_in_a_line() -> None:
    after_peak = rates(decay="wsd", decay_fraction=0.2)[3:]
    assert after_peak[:13] == [2.0] * 13
    assert after_peak[13:] == pytest.approx([1.625, 1.25, 0.875, 0.5])


def test_a_warm_up_over_all_steps_ends_at_the_peak() -> None:
    assert rates(warmup_steps=STEPS)[-1] == 2.0


@pytest.mark.parametrize("fused", [False, True])
def test_updates_are_those_of_torch_adamw_with_decay_on_matrices_only(fused: bool) -> None:
    ours, theirs = network(), network()
    config = section(weight_decay=0.3, betas=(0.8, 0.9), epsilon=1e-3, fused=fused)
    optimizer = build_optimizer(ours.parameters(), config, CPU)
    plain = {True: {"weight_decay": 0.3}, False: {"weight_decay": 0.0}}
    references = [
        torch.optim.AdamW([p], lr=2.0, betas=(0.8, 0.9), eps=1e-3, **plain[p.ndim == 2]) for p in theirs.parameters()
    ]
    for seed in range(3):
        for model in (ours, theirs):
            give_gradients(model, seed)
        for one in (optimizer, *references):
            one.step()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-13, atol=0)


def test_without_gradient_a_matrix_shrinks_and_a_norm_stays() -> None:
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    build_optimizer(model.parameters(), section(learning_rate=0.5, weight_decay=0.2), CPU).step()
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old * (0.9 if old.ndim == 2 else 1.0))


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipping_is_that_of_torch_and_also_takes_a_generator(limit: float) -> None:
    ours, theirs = network(), network()
    norm = float(squared_gradient_norm(list(ours.parameters())).sqrt())
    clip_gradients((parameter for parameter in ours.parameters()), norm, limit)
    total = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
    assert math.isclose(norm, float(total), rel_tol=1e-14)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-13, atol=0)
    clipped = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in ours.parameters()))
    assert math.isclose(clipped, min(norm, limit), rel_tol=1e-5)


def test_clipping_changes_the_second_update() -> None:
    # Not the first: AdamW divides its first gradient by its own size.
    ends = []
    for limit in (0.1, 1e6):
        model = network()
        optimizer = build_optimizer(model.parameters(), section(learning_rate=1e-2, epsilon=1e-8), CPU)
        for scale in (1.0, 50.0):
            give_gradients(model, int(scale))
            for parameter in model.parameters():
                parameter.grad *= scale
            norm = float(squared_gradient_norm(list(model.parameters())).sqrt())
            clip_gradients(model.parameters(), norm, limit)
            optimizer.step()
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert (ends[0] - ends[1]).norm() > 1e-2 * ends[1].norm()


def test_a_non_finite_gradient_gives_a_non_finite_norm() -> None:
    for bad in (math.nan, math.inf):
        model = network()
        parameters = list(model.parameters())
        parameters[1].grad[2] = bad
        assert not math.isfinite(squared_gradient_norm(parameters))


def test_a_rank_that_answers_for_no_parameter_adds_nothing_to_the_norm() -> None:
    assert float(squared_gradient_norm([])) == 0.0
