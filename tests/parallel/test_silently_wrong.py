"""What torch 2.13 computes wrongly and does not say: exact under our rule, or refused before any process starts.

Where it is quick to show, the refused combination is run all the same: when torch mends it, the test fails and the rule
can go.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.cases import CASES, configuration
from harness.reference import train_plainly
from parallel.ranks import Call, on_ranks
from torchlayout.config import Config
from torchlayout.layout import Layout, words
from torchlayout.train.environment import process_group
from torchlayout.train.trainer import Trainer

ZERO_BUBBLE = ("pp2+zbv", "pp2+dualpipev", "pp2+zerobubble2")


def raw(corpus: Path, variant: str = "grouped-query") -> dict[str, Any]:
    return configuration(variant, str(corpus), "fp64", steps=2)


@pytest.fixture(scope="module")
def right_norm(small_corpus: Path) -> float:
    """The norm of the first gradient."""
    return float(train_plainly(raw(small_corpus))["norms"][0])


@pytest.fixture(scope="module")
def outcomes(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    labels = [*ZERO_BUBBLE, *(f"{label}+zero3" for label in ZERO_BUBBLE), "tp2+compile", "tp2+sp+compile"]
    gradients, tables = "silently_wrong_ranks:unchecked_gradients", raw(small_corpus)
    calls = {label: Call(gradients, {"label": label, "raw": tables}) for label in labels}
    calls["no clone"] = Call(gradients, {"label": "tp2+compile", "raw": tables, "hook": False})
    calls["views"] = Call("silently_wrong_ranks:embedding_output", {"sequence_parallel": False})
    calls["views, sp"] = Call("silently_wrong_ranks:embedding_output", {"sequence_parallel": True})
    calls["nn.init"] = Call("silently_wrong_ranks:initialised_by_torch")
    # Torch gives this one up half way, and leaves messages behind: it must be the last.
    calls["selective"] = Call(gradients, {"label": "pp2+zerobubble2+selective", "raw": tables})
    return on_ranks(2, calls, tmp_path_factory.mktemp("silently-wrong"))


def problems(label: str, corpus: Path, **sections: dict[str, Any]) -> list[str]:
    config = Config.from_dict(raw(corpus) | {"layout": {"label": label}} | sections)
    return config.check(Layout.parse(label).world)


def covered(schedule: str, *, tied: bool | None = None, sharded: bool = False) -> bool:
    """Whether the parity benchmark has a layout with this schedule, of a tied model, or sharded over data ranks."""
    return any(
        layout.schedule == schedule
        and (tied is None or ("tied" in case.variant or "9 layers" in case.variant) is tied)
        and (not sharded or layout.shard * layout.context > 1)
        for case in CASES
        for layout in [Layout.parse(case.label)]
    )


class TestZeroBubbleSchedulesAndParametersFreedAfterForward:
    """S1: some gradients are missing, or wrong."""

    @pytest.mark.parametrize("label", ZERO_BUBBLE)
    def test_are_refused_in_one_sentence(self, label: str, small_corpus: Path) -> None:
        assert problems(label, small_corpus) == []
        (sentence,) = problems(f"{label}+zero3", small_corpus)
        assert "layout.zero = 3" in sentence
        assert "legal: zero 1 or 2" in sentence

    @pytest.mark.ranks
    @pytest.mark.parametrize("label", ZERO_BUBBLE)
    def test_are_wrong_in_torch_where_keeping_parameters_is_exact(
        self, label: str, outcomes: Any, right_norm: float
    ) -> None:
        assert all(found["missing"] == [] for found in outcomes[label])
        assert outcomes[label][0]["norm"] == pytest.approx(right_norm, rel=1e-12)
        assert abs(outcomes[f"{label}+zero3"][0]["norm"] / right_norm - 1) > 0.01

    @pytest.mark.parametrize("schedule", words.ZERO_BUBBLE_SCHEDULES)
    def test_are_exact_under_our_rule_in_the_parity_benchmark(self, schedule: str) -> None:
        assert covered(schedule, sharded=True)


class TestZeroBubbleSchedulesAndCompiledBlocks:
    """S2 (pytorch#161904): gradients are wrong. Compiling takes too long to show it here."""

    @pytest.mark.parametrize("label", ZERO_BUBBLE)
    def test_are_refused_in_one_sentence(self, label: str, small_corpus: Path) -> None:
        (sentence,) = problems(f"{label}+compile", small_corpus)
        assert "pytorch#161904" in sentence
        (sentence,) = problems(label, small_corpus, kernels={"compile": True})
        assert "kernels.compile = true" in sentence


class TestZeroBubbleSchedulesAndSelectiveRecomputation:
    """Not silent, but a traceback from the middle of a step."""

    @pytest.mark.parametrize("label", ZERO_BUBBLE)
    def test_are_refused_in_one_sentence(self, label: str, small_corpus: Path) -> None:
        (sentence,) = problems(f"{label}+selective", small_corpus)
        assert 'layout.recompute = "selective"' in sentence

    @pytest.mark.ranks
    def test_fail_in_torch(self, outcomes: Any) -> None:
        assert all("Trying to backward an extra time" in found["raised"] for found in outcomes["selective"])


class TestVocabularyParallelEmbeddingBeforeACompiledBlock:
    """S3 (pytorch#191113): the embedding's gradient is wrong or missing."""

    @pytest.mark.ranks
    @pytest.mark.parametrize("label", ["tp2+compile", "tp2+sp+compile"])
    def test_gets_the_right_gradient(self, label: str, outcomes: Any, right_norm: float) -> None:
        assert all(found["missing"] == [] for found in outcomes[label])
        assert outcomes[label][0]["norm"] == pytest.approx(right_norm, rel=1e-12)

    @pytest.mark.ranks
    def test_gets_a_wrong_one_in_torch_without_our_clone(self, outcomes: Any, right_norm: float) -> None:
        found = outcomes["no clone"][0]
        assert "raised" in found or abs(found["norm"] / right_norm - 1) > 0.01

    @pytest.mark.ranks
    @pytest.mark.parametrize("case", ["views", "views, sp"])
    def test_gives_no_view_as_it_does_without_our_clone(self, case: str, outcomes: Any) -> None:
        assert outcomes[case] == [(False, True)] * 2

    @pytest.mark.parametrize("label", ["tp2+sp+compile", "fsdp2-tp2+compile"])
    def test_is_exact_when_really_compiled_in_the_parity_benchmark(self, label: str) -> None:
        assert label in {case.label for case in CASES}


class TestTiedEmbeddingAtBothEndsOfAV:
    """S4: one shared parameter is scaled twice; ours has a copy at each end (see test_pipeline)."""

    @pytest.mark.parametrize("schedule", words.V_SCHEDULES)
    def test_is_exact_in_the_parity_benchmark(self, schedule: str) -> None:
        assert covered(schedule, tied=True)


class TestInitialWeights:
    """S5: drawn shard by shard, all shards are alike, or replicas differ."""

    @pytest.mark.ranks
    def test_drawn_by_torch_are_alike_on_all_ranks(self, outcomes: Any) -> None:
        assert outcomes["nn.init"] == [True, True]

    def test_are_equal_in_every_layout_in_the_parity_benchmark(self) -> None:
        worlds = {Layout.parse(case.label).world for case in CASES if case.variant == "grouped-query"}
        assert len(worlds) > 2, "test_parity compares the digests of one variant's initial weights over its layouts"


@pytest.mark.parametrize("name", ["layers.1.attention.key", "head.norm"])
def test_no_missing_gradient_passes_in_silence(name: str, small_corpus: Path) -> None:
    config = Config.from_dict(raw(small_corpus))
    with process_group(torch.device("cpu"), 60):
        trainer = Trainer(config, config.layout_for(1), torch.device("cpu"))
        module = trainer.model.parts[0].get_submodule(name)
        forward = module.forward
        module.forward = lambda x: x if name == "head.norm" else forward(x).detach()  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match=f"no gradient reached {re.escape(name)}.weight$"):
            trainer.step()
