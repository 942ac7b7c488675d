from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchlayout.compare.evidence import Evidence, gather
from torchlayout.compare.verdict import TOLERANCES, Fairness, fairness, parity
from torchlayout.data.order import Order
from torchlayout.train.__main__ import main
from torchlayout.train.trainer import Trainer

FILE = """
[run]
directory = "DIRECTORY"
[model]
preset = "debug"
[data]
path = "CORPUS"
sequence_length = 32
workers = 0
[batch]
global_size = 4
[precision]
parameters = "fp32"
[train]
steps = 4
"""


class Training:
    """Trains in this process, and gathers what it leaves."""

    def __init__(self, folder: Path, corpus: Path) -> None:
        self.folder = folder
        text = FILE.replace("CORPUS", str(corpus)).replace("DIRECTORY", str(folder))
        (folder / "input.toml").write_text(text)

    def __call__(self, name: str, label: str, *settings: str) -> Evidence:
        words = [word for setting in (f"run.name={name}", *settings) for word in ("--set", setting)]
        assert main([str(self.folder / "input.toml"), "--layout", label, *words]) == 0
        return gather(label, 1, self.folder / name)


@pytest.fixture(scope="module")
def train(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("training"), small_corpus)


@pytest.fixture(scope="module")
def baseline(train: Training) -> Evidence:
    """What one rank leaves with all four sequences in a micro-batch; the faults are planted beside it."""
    return train("baseline", "fsdp1+mb4")


def failing(found: Fairness) -> set[str]:
    return {name for name, value in vars(found).items() if value is False}


def test_another_layout_of_the_same_training_is_fair_and_trains_the_same_model(
    train: Training, baseline: Evidence
) -> None:
    other = train("other", "fsdp1+mb2+ckpt+math")
    assert fairness(other, baseline).problems == ()
    found = parity(other, baseline, "fp32")
    assert found.within
    assert 0 < found.norm.value < 1e-5
    assert list(found.problems("a", "b")) == []


def test_a_data_order_off_by_one_is_caught(
    train: Training, baseline: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Order.at

    def shifted(order: Order, positions: Any) -> Any:
        return at(order, np.asarray(positions) + 1)

    monkeypatch.setattr(Order, "at", shifted)
    faulty = train("shifted", "fsdp1+mb2")
    found = fairness(faulty, baseline)
    assert failing(found) == {"data"}
    assert len(found.problems) == 1
    assert "batch_digest of step 1 is" in found.problems[0]
    assert "it was trained on other samples, or in another order" in found.problems[0]
    assert not parity(faulty, baseline, "fp32").within


def test_a_wrong_gradient_scale_is_caught(train: Training, baseline: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    finish: Callable[..., Any] = Trainer.count_labels

    def half(trainer: Trainer, labels: Any) -> Any:
        return finish(trainer, labels) / 2 if trainer.steps_done == 1 else finish(trainer, labels)

    monkeypatch.setattr(Trainer, "count_labels", half)
    # The loss of that step would show it as well, so it is put right: gradients alone are wrong.
    faulty = train("scaled", "fsdp1+mb2")
    steps = [dict(step) for step in faulty.steps]
    steps[1]["loss"] /= 2
    faulty = replace(faulty, steps=tuple(steps))
    assert fairness(faulty, baseline).fair
    found = parity(faulty, baseline, "fp32")
    assert not found.within
    assert (found.norm.value, found.norm.step) == (pytest.approx(1.0, rel=1e-3), 2)
    (problem,) = [said for said in found.problems("fsdp1+mb2", "fsdp1+mb4") if "gradient norm" in said]
    assert "the gradient norm of step 2 differs from that of fsdp1+mb4 by 1.0e+00 (relative)" in problem
    assert "it does not train the same model" in problem


def test_another_seed_is_caught(train: Training, baseline: Evidence) -> None:
    faulty = train("seed", "fsdp1+mb2", "run.seed=4321")
    found = fairness(faulty, baseline)
    assert failing(found) == {"data", "weights", "settings"}
    assert any("run.seed is 4321, and 1234 in fsdp1+mb4, repeat 1" in problem for problem in found.problems)
    assert any("it started from other weights" in problem for problem in found.problems)
    assert not parity(faulty, baseline, "fp32").within


def test_another_learning_rate_is_caught(train: Training, baseline: Evidence) -> None:
    faulty = train("rate", "fsdp1+mb2", "optimizer.learning_rate=1e-3")
    found = fairness(faulty, baseline)
    assert failing(found) == {"optimizer"}
    assert any("optimizer.learning_rate is 0.001, and 0.0003 in" in problem for problem in found.problems)


def changed(evidence: Evidence, number: int, **values: Any) -> Evidence:
    steps = [dict(step) for step in evidence.steps]
    steps[number - 1] |= values
    return replace(evidence, label="other", steps=tuple(steps))


def test_tokens_of_a_step_and_the_number_of_steps_are_compared(baseline: Evidence) -> None:
    assert failing(fairness(changed(baseline, 3, tokens=1), baseline)) == {"tokens"}
    shorter = replace(baseline, steps=baseline.steps[:-1])
    assert failing(fairness(shorter, baseline)) == {"tokens"}


def test_software_and_hardware_are_compared_but_not_which_of_equal_nodes_it_was(baseline: Evidence) -> None:
    software = replace(baseline, facts=baseline.facts | {"software": {"torch": "1"}})
    assert failing(fairness(software, baseline)) == {"software"}
    host = replace(baseline, facts=baseline.facts | {"hardware": {**baseline.facts["hardware"], "host": "elsewhere"}})
    # "x86_64" does not say which CPU it is, so the name of the machine counts; a GPU has a name of its own.
    assert failing(fairness(host, baseline)) == {"software"}
    gpus = [
        replace(each, facts=each.facts | {"hardware": {**each.facts["hardware"], "device": "cuda"}})
        for each in (host, baseline)
    ]
    assert fairness(gpus[0], gpus[1]).fair


@pytest.mark.parametrize("precision", TOLERANCES)
def test_the_tolerance_is_that_of_the_precision(precision: str, baseline: Evidence) -> None:
    loss, norm = TOLERANCES[precision]
    values = baseline.steps[1]
    near = changed(
        baseline, 2, loss=values["loss"] * (1 + loss * 0.9), grad_norm=values["grad_norm"] * (1 - norm * 0.9)
    )
    assert parity(near, baseline, precision).within
    for key, tolerance in (("loss", loss), ("grad_norm", norm)):
        far = changed(baseline, 2, **{key: values[key] * (1 + tolerance * 1.1)})
        found = parity(far, baseline, precision)
        assert not found.within
        distance = found.loss if key == "loss" else found.norm
        assert distance.step == 2
        assert distance.value == pytest.approx(tolerance * 1.1)


def test_a_loss_that_is_no_number_in_one_run_only_fails(baseline: Evidence) -> None:
    broken = changed(baseline, 3, loss=None)
    found = parity(broken, baseline, "bf16")
    assert (found.loss.value, found.loss.step, found.within) == (math.inf, 3, False)
    assert "by not a number in one" in next(found.problems("a", "b"))
    assert parity(broken, broken, "bf16").within
