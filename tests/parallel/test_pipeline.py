from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.cases import configuration
from parallel.ranks import Call, on_ranks
from torchlayout.config import Config
from torchlayout.data.corpus import Corpus
from torchlayout.layout import Layout
from torchlayout.model.count import shapes
from torchlayout.model.llama import Llama
from torchlayout.parallel.pipeline import stage_parts

SEQUENCE, GLOBAL_BATCH, HELD_OUT = 32, 8, 11
"""HELD_OUT, in samples: a full evaluation batch, and one of three samples."""
EVALUATED = ("pp2+gpipe", "pp2+interleaved2+mb2", "pp2+zbv", "pp2+dualpipev")
TIED = ("pp2+zbv", "pp2+dualpipev")
CROSSED = {
    "pp2-tp2+sp+mb2": (2, SEQUENCE // 2, 64),
    "pp2-tp2+mb2": (2, SEQUENCE, 64),
    "pp2-cp2+mb2": (2, SEQUENCE // 2, 64),
    "pp2-cp2+ulysses+zbv": (1, SEQUENCE // 2, 64),
}
UNEVEN = ((5, "pp2+zbv"), (7, "pp3+zbv"), (9, "pp4+dualpipev"), (11, "pp4+zbv"), (7, "pp3+interleaved2"))


def raw(corpus: Path, variant: str = "ignored tokens") -> dict[str, Any]:
    tables = configuration(variant, str(corpus), "fp64", steps=2)
    tables["data"] |= {"evaluation_fraction": HELD_OUT / Corpus.open(corpus).samples(SEQUENCE)}
    return tables


@pytest.fixture(scope="module")
def two_ranks(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    plain, tied = {"raw": raw(small_corpus)}, {"raw": raw(small_corpus, "tied")}
    calls = {}
    for label in EVALUATED:
        calls[f"{label}, evaluated"] = Call("pipeline_ranks:trained", {"label": label, "evaluations": True} | plain)
        calls[f"{label}, trained"] = Call("pipeline_ranks:trained", {"label": label, "evaluations": False} | plain)
        calls[f"{label}, gradients"] = Call("pipeline_ranks:gradients_around_an_evaluation", {"label": label} | plain)
    for label in TIED:
        calls[f"{label}, tied"] = Call("pipeline_ranks:tied_copies", {"label": label} | tied)
    return on_ranks(2, calls, tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def four_ranks(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    calls = {
        label: Call("pipeline_ranks:crossing_shapes", {"label": label, "raw": raw(small_corpus)}) for label in CROSSED
    }
    return on_ranks(4, calls, tmp_path_factory.mktemp("pipeline"))


def held_out_loss(corpus: Path, parameters: dict[str, Tensor]) -> float:
    """The mean loss over all labels of the last HELD_OUT samples, in one process, one sample at a time."""
    tokens, config = Corpus.open(corpus), Config.from_dict(raw(corpus)).model
    model = Llama(config, attention="math", norm="eager").double()
    model.load_state_dict(parameters)
    count, summed, labels = tokens.samples(SEQUENCE), 0.0, 0
    for sample in range(count - HELD_OUT, count):
        window = torch.as_tensor(tokens.sample(sample, SEQUENCE))[None]
        ends = window[:, :-1] == tokens.eos
        logits = model(window[:, :-1], documents=ends.long().cumsum(1) - ends.long())
        each = F.cross_entropy(logits[0], window[0, 1:], reduction="none")[~ends[0]]
        summed, labels = summed + each.sum().item(), labels + len(each)
    return summed / labels


@pytest.mark.ranks
@pytest.mark.parametrize("label", EVALUATED)
def test_evaluation_through_a_pipeline_is_that_of_one_process(label: str, two_ranks: Any, small_corpus: Path) -> None:
    outcome = two_ranks[f"{label}, evaluated"][0]
    before, *_, after = outcome["held out"]
    assert math.isclose(before, held_out_loss(small_corpus, outcome["initial"]), rel_tol=1e-12)
    assert math.isclose(after, held_out_loss(small_corpus, outcome["parameters"]), rel_tol=1e-12)
    assert all(rank["held out"] == outcome["held out"] for rank in two_ranks[f"{label}, evaluated"])


@pytest.mark.ranks
@pytest.mark.parametrize("label", EVALUATED)
def test_evaluation_leaves_gradients_and_later_training_as_they_were(label: str, two_ranks: Any) -> None:
    assert two_ranks[f"{label}, gradients"] == [True, True]
    evaluated, trained = two_ranks[f"{label}, evaluated"][0], two_ranks[f"{label}, trained"][0]
    assert evaluated["steps"] == trained["steps"]
    assert all(torch.equal(weight, trained["parameters"][name]) for name, weight in evaluated["parameters"].items())


@pytest.mark.ranks
@pytest.mark.parametrize("label", TIED)
def test_the_two_ends_of_a_tied_v_start_equal_and_stay_so(label: str, two_ranks: Any) -> None:
    both_ends, middle = two_ranks[f"{label}, tied"]
    assert middle == {}
    assert both_ends == {
        "at the start": True,
        "the ends' gradients": False,
        "their sums": True,
        "after two steps": True,
    }


@pytest.mark.ranks
@pytest.mark.parametrize("label", CROSSED)
def test_what_crosses_between_stages_has_the_shape_of_the_boundary(label: str, four_ranks: Any) -> None:
    for found in four_ranks[label]:
        assert found["boundary"] == (CROSSED[label], torch.float64)
        assert found["crossing"] == {found["boundary"]}


@pytest.mark.parametrize(("layers", "label"), UNEVEN)
@pytest.mark.parametrize("tied", [False, True])
def test_uneven_stages_hold_every_parameter_once_in_the_order_of_their_stages(
    layers: int, label: str, tied: bool
) -> None:
    layout = Layout.parse(label)
    changes = {"num_hidden_layers": layers, "tie_word_embeddings": tied}
    config = Config.from_dict({"model": {"preset": "debug"} | changes, "data": {"path": "none"}})
    with torch.device("meta"):
        of_ranks = [stage_parts(config, layout, rank) for rank in range(layout.pipeline)]
    held = Counter(name for part in chain(*of_ranks) for name, _ in part.named_parameters())
    # A tied head has a copy of the embedding where it stands at the other end.
    copies = Counter({"head.output.weight": 1} if tied else {})
    assert held == Counter(shapes(config.model).keys()) + copies
    by_stage = {
        stage: part
        for rank, parts in enumerate(of_ranks)
        for stage, part in zip(layout.stages_of(rank), parts, strict=True)
    }
    order = [int(number) for _, part in sorted(by_stage.items()) for number in part.layers]
    assert order == list(range(layers))
    assert all(len(part.layers) > 0 for part in by_stage.values())
    assert [stage for stage, part in by_stage.items() if part.embedding is not None] == [0]
    assert [stage for stage, part in by_stage.items() if part.head is not None] == [layout.stages - 1]
