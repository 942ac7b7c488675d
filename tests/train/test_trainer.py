from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.cases import configuration
from harness.launch import torchrun
from harness.reference import train_plainly
from torchlayout.config import Config
from torchlayout.data.corpus import Corpus
from torchlayout.layout import Layout
from torchlayout.model.llama import Llama
from torchlayout.train.environment import process_group
from torchlayout.train.trainer import StepResult, Trainer, TrainingStopped
from train import worker

CPU = torch.device("cpu")
STEPS, GLOBAL_BATCH, SEQUENCE = 2, 8, 32
HELD_OUT = 11
"""Samples: a full evaluation batch, and one of three samples."""
# One launch has to do: the ranks' start-up is most of the time.
EVALUATED = ["fsdp1+mb2", "fsdp4", "pp2-dp2", "pp2-tp2+sp+mb2", "fsdp2-tp2+mb2", "dp2-cp2+mb2", "pp2-fsdp2+zbv"]
TRAINED = ["fsdp1+mb2", "fsdp4", "pp2-dp2", "pp2-fsdp2+zbv"]
BAD_STEP = ["fsdp1+mb2", "fsdp4+mb2", "pp2-dp2+mb2", "fsdp2-tp2+mb4"]
DISAGREEING = ["pp2-tp2+mb4", "fsdp2-tp2+mb4"]


def raw(corpus: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """fp64; attention inside documents, so that batches differ in how many labels count."""
    samples = Corpus.open(corpus).samples(SEQUENCE)
    tables = configuration("ignored tokens", str(corpus), "fp64", STEPS)
    tables["data"] |= {"evaluation_fraction": HELD_OUT / samples}
    tables["train"] |= {"evaluate_batches": 8}
    return tables | {section: tables.get(section, {}) | values for section, values in changes.items()}


@pytest.fixture(scope="module")
def outcomes(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every experiment came to; the four ranks' in one launch."""
    plain = raw(small_corpus)
    evaluating = plain | {"train": plain["train"] | {"evaluate_every": 1}}
    jobs = [
        *({"name": f"evaluated {label}", "experiment": "trained", "config": evaluating} for label in EVALUATED),
        *({"name": f"trained {label}", "experiment": "trained", "config": plain} for label in TRAINED),
        *({"name": f"bad step {label}", "experiment": "one_bad_step", "config": plain} for label in BAD_STEP),
        *(
            {"name": f"other {label}", "experiment": "other_samples_on_the_last_rank", "config": plain}
            for label in DISAGREEING
        ),
    ]
    together: dict[str, Any] = {}
    folder = tmp_path_factory.mktemp("trainer")
    for ranks in (1, 4):
        own = [job | {"label": job["name"].split()[-1]} for job in jobs]
        own = [job for job in own if Layout.parse(job["label"]).world == ranks]
        jobs_file, results_file = folder / f"jobs-{ranks}.json", folder / f"results-{ranks}.pt"
        jobs_file.write_text(json.dumps(own))
        if ranks == 1:
            worker.main(str(jobs_file), str(results_file))
        else:
            done = torchrun(ranks, str(Path(worker.__file__)), str(jobs_file), str(results_file))
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        together |= torch.load(results_file, weights_only=False)
    return together


@pytest.fixture
def alone() -> Iterator[None]:
    """The process group of one process."""
    with process_group(CPU, 60):
        yield


def trainer(corpus: Path, **changes: dict[str, Any]) -> Trainer:
    config = Config.from_dict(raw(corpus, **changes))
    return Trainer(config, config.layout_for(1), CPU)


def held_out_loss(corpus: Path, parameters: dict[str, Tensor]) -> float:
    """The mean loss over all labels of the last HELD_OUT samples, one sample at a time."""
    tokens, config = Corpus.open(corpus), Config.from_dict(raw(corpus)).model
    model = Llama(config, attention="math", norm="eager").double()
    model.load_state_dict(parameters)
    count = tokens.samples(SEQUENCE)
    summed, labels = 0.0, 0
    for sample in range(count - HELD_OUT, count):
        window = torch.as_tensor(tokens.sample(sample, SEQUENCE))[None]
        ends = window[:, :-1] == tokens.eos
        logits = model(window[:, :-1], documents=ends.long().cumsum(1) - ends.long())
        each = F.cross_entropy(logits[0], window[0, 1:], reduction="none")[~ends[0]]
        summed, labels = summed + each.sum().item(), labels + len(each)
    assert labels < HELD_OUT * SEQUENCE
    return summed / labels


@pytest.mark.parametrize("label", EVALUATED)
def test_evaluation_loss_is_the_mean_over_the_labels_of_the_held_out_samples(
    label: str, outcomes: dict[str, Any], small_corpus: Path
) -> None:
    outcome = outcomes[f"evaluated {label}"]
    found = outcome["results_by_rank"][0][-1].evaluation_loss
    assert math.isclose(found, held_out_loss(small_corpus, outcome["parameters"]), rel_tol=1e-10)


@pytest.mark.parametrize("label", TRAINED)
def test_evaluating_between_steps_changes_nothing_of_training(label: str, outcomes: dict[str, Any]) -> None:
    with_it, without = outcomes[f"evaluated {label}"], outcomes[f"trained {label}"]
    for name, tensor in without["parameters"].items():
        assert torch.equal(tensor, with_it["parameters"][name]), name
    pairs = zip(with_it["results_by_rank"][0], without["results_by_rank"][0], strict=True)
    for evaluated, plain in pairs:
        assert plain.evaluation_loss is None
        assert evaluated.evaluation_loss is not None
        assert (evaluated.loss, evaluated.grad_norm) == (plain.loss, plain.grad_norm)


@pytest.mark.parametrize("label", EVALUATED)
def test_every_rank_knows_the_same_loss_norm_and_digest(label: str, outcomes: dict[str, Any]) -> None:
    first, *others = outcomes[f"evaluated {label}"]["results_by_rank"]
    assert len(others) == Layout.parse(label).world - 1
    assert all(other == first for other in others)
    assert all(3 < result.loss < 7 for result in first)


@pytest.mark.parametrize("label", EVALUATED)
def test_tokens_are_counted_once_over_all_ranks(label: str, outcomes: dict[str, Any]) -> None:
    results = outcomes[f"evaluated {label}"]["results_by_rank"][0]
    assert [result.tokens for result in results] == [GLOBAL_BATCH * SEQUENCE, 2 * GLOBAL_BATCH * SEQUENCE]


def test_initial_weights_are_equal_bits_in_every_layout(outcomes: dict[str, Any]) -> None:
    runs = [outcomes[f"evaluated {label}"] for label in EVALUATED]
    assert len({run["initial_weights_digest"] for run in runs}) == 1
    for run in runs[1:]:
        for name, tensor in runs[0]["initial"].items():
            assert torch.equal(run["initial"][name], tensor), name


@pytest.mark.parametrize("label", BAD_STEP)
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all_and_changes_no_bit(
    label: str, outcomes: dict[str, Any]
) -> None:
    outcome = outcomes[f"bad step {label}"]
    for results in outcome["results_by_rank"]:
        assert [result.skipped for result in results] == [False, True, False, False]
        assert [math.isfinite(result.loss) for result in results] == [True, False, True, True]
        assert [result.step for result in results] == [1, 2, 3, 4]
    assert all(unchanged[0] for unchanged in outcome["unchanged_by_rank"])
    assert not any(any(unchanged[1:]) for unchanged in outcome["unchanged_by_rank"])
    assert outcome["skipped_in_a_row"] == 0


@pytest.mark.parametrize("label", DISAGREEING)
def test_a_rank_that_was_given_other_samples_stops_all_ranks(label: str, outcomes: dict[str, Any]) -> None:
    said = outcomes[f"other {label}"]
    assert len(said) == Layout.parse(label).world
    assert set(said) == {"tensor or pipeline ranks of one data rank were given different samples"}


@pytest.mark.usefixtures("alone")
def test_two_steps_from_the_meta_device_are_those_of_a_model_that_never_was_there(small_corpus: Path) -> None:
    tables = configuration("ignored tokens", str(small_corpus), "fp64", 3)
    config = Config.from_dict(tables)
    ours, theirs = Trainer(config, config.layout_for(1), CPU), train_plainly(tables)
    losses = [ours.step().loss for _ in range(3)]
    assert losses == pytest.approx(theirs["losses"], rel=1e-12)
    assert losses[2] < losses[0] - 0.2


@pytest.mark.usefixtures("alone")
def test_another_seed_starts_from_other_weights_and_sees_other_samples(small_corpus: Path) -> None:
    one, same, other = (trainer(small_corpus, run={"seed": seed}) for seed in (7, 7, 8))
    assert one.initial_weights_digest == same.initial_weights_digest != other.initial_weights_digest
    digests = [each.step().batch_digest for each in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.usefixtures("alone")
def test_an_order_that_is_off_by_one_sample_changes_the_digest(
    small_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = trainer(small_corpus).step().batch_digest
    shifted = trainer(small_corpus)
    order = type(shifted.loader._batches.order)
    at = order.at
    monkeypatch.setattr(order, "at", lambda self, positions: at(self, positions + 1))
    assert shifted.step().batch_digest != right


@pytest.mark.usefixtures("alone")
def test_a_parameter_that_no_gradient_reaches_is_named_at_the_first_step(small_corpus: Path) -> None:
    broken = trainer(small_corpus)
    norm = broken.model.parts[0].layers["2"].attention_norm
    norm.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=r"no gradient reached layers\.2\.attention_norm\.weight$"):
        broken.step()


@pytest.mark.usefixtures("alone")
def test_the_seconds_of_every_step_are_its_own_also_of_the_first(small_corpus: Path) -> None:
    timed = trainer(small_corpus, train={"log_every": 3})
    for _ in range(3):
        time.sleep(0.05)  # between steps, and so in none
        started = time.perf_counter()
        result = timed.step()
        wall = time.perf_counter() - started
        assert 0.8 * wall - 0.002 < result.seconds <= wall
        assert 0 < result.data_seconds < result.seconds


class Poison:
    """Makes the loss, or only the gradient, of chosen steps not finite, and sees which were skipped."""

    def __init__(self, trainer: Trainer, bad_steps: set[int], only_gradient: bool) -> None:
        self.trainer, self.bad_steps, self.only_gradient = trainer, bad_steps, only_gradient
        self.results: list[StepResult] = []
        trainer.model.parts[0].layers["1"].register_forward_hook(self.spoil)

    def spoil(self, module: Any, arguments: Any, output: Tensor) -> Tensor:
        if self.trainer.steps_done + 1 not in self.bad_steps:
            return output
        if not self.only_gradient:
            return output * math.nan
        output.register_hook(lambda gradient: gradient * math.inf)
        return output

    def after_step(self, trainer: Trainer, result: StepResult) -> StepResult:
        self.results.append(result)
        return result


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("only_gradient", [False, True], ids=["loss", "gradient"])
@pytest.mark.parametrize(
    ("bad_steps", "stops_at"), [({2, 3, 4}, 4), ({1, 2, 4, 5, 7, 8}, None), ({1, 3, 4, 5, 6}, 5)], ids=str
)
def test_training_stops_after_so_many_bad_steps_in_a_row_and_not_before(
    bad_steps: set[int], stops_at: int | None, only_gradient: bool, small_corpus: Path
) -> None:
    tables = {"train": {"steps": 8, "stop_after_non_finite": 3}, "layout": {"label": "fsdp1+mb8"}}
    one = trainer(small_corpus, **tables)
    poison = Poison(one, bad_steps, only_gradient)
    if stops_at is None:
        one.fit([poison])
    else:
        with pytest.raises(
            TrainingStopped, match=f"stopped at step {stops_at}: .* in 3 steps in a row .*learning_rate"
        ):
            one.fit([poison])
    assert one.steps_done == (stops_at or 8)
    assert {result.step for result in poison.results if result.skipped} == bad_steps & set(range(one.steps_done + 1))
    assert all(math.isfinite(result.loss) or not only_gradient for result in poison.results)
