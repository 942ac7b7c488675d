"""Every layout trains the model that one plain process trains."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.cases import COVERING, Case, configuration
from harness.compare import distance
from harness.launch import train_layouts
from harness.reference import train_plainly
from torchlayout.layout import Layout

# The first test waits for all layouts to be trained.
pytestmark = pytest.mark.timeout(1800)

FP32_CASES = [
    Case("fsdp2+mb2", "tied"),
    Case("tp2+sp", "odd vocabulary"),
    Case("pp2-fsdp2+mb2", "5 layers"),
    Case("fsdp2-tp2", "ignored tokens"),
]


@pytest.fixture(scope="module")
def references(small_corpus: Path) -> dict[tuple[str, str], dict[str, Any]]:
    torch.set_num_threads(1)
    wanted = {("fp64", case.variant) for case in COVERING} | {("fp32", case.variant) for case in FP32_CASES}
    return {
        (precision, variant): train_plainly(configuration(variant, str(small_corpus), precision))
        for precision, variant in sorted(wanted)
    }


@pytest.fixture(scope="module")
def outcomes(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Case], dict[str, Any]]:
    """What every case came to, by precision; one launch for each number of ranks."""
    by_ranks: dict[int, list[tuple[str, Case]]] = defaultdict(list)
    for precision, cases in (("fp64", COVERING), ("fp32", FP32_CASES)):
        for case in cases:
            by_ranks[case.ranks].append((precision, case))
    together = {}
    for ranks, keys in by_ranks.items():
        jobs = [
            {"label": case.label, "config": configuration(case.variant, str(small_corpus), precision)}
            for precision, case in keys
        ]
        together |= dict(zip(keys, train_layouts(ranks, jobs, tmp_path_factory.mktemp("parity")), strict=True))
    return together


@pytest.mark.parametrize("case", COVERING, ids=str)
def test_every_layout_trains_as_one_plain_process_does_in_fp64(
    case: Case, outcomes: dict[Any, Any], references: dict[Any, Any]
) -> None:
    apart = distance(outcomes["fp64", case], references["fp64", case.variant])
    assert apart.within("fp64"), str(apart)


@pytest.mark.parametrize("case", FP32_CASES, ids=str)
def test_fp32_is_as_close_as_rounding_allows(case: Case, outcomes: dict[Any, Any], references: dict[Any, Any]) -> None:
    apart = distance(outcomes["fp32", case], references["fp32", case.variant])
    assert apart.within("fp32"), str(apart)


def test_initial_weights_are_the_same_bits_in_every_layout(outcomes: dict[Any, Any]) -> None:
    digests: dict[str, set[str]] = defaultdict(set)
    for (precision, case), outcome in outcomes.items():
        if precision == "fp64":
            digests[case.variant].add(outcome["initial_weights_digest"])
    assert {variant: len(found) for variant, found in digests.items()} == dict.fromkeys(digests, 1)
    assert digests["grouped-query"].isdisjoint(digests["odd vocabulary"])


def test_the_trained_layouts_cover_every_choice_and_every_pair_of_axes() -> None:
    layouts = [Layout.parse(case.label) for case in COVERING]
    axes = ("pipeline", "replicate", "shard", "context", "tensor")
    together = [{axis for axis in axes if getattr(layout, axis) > 1} for layout in layouts]
    assert all(any(set(pair) <= held for held in together) for pair in itertools.combinations(axes, 2))
    assert len({frozenset(held) for held in together if len(held) >= 3}) >= 4
    chosen = {(name, getattr(layout, name)) for layout in layouts for name in vars(layout)}
    for name, values in CHOICES.items():
        assert {value for value in values if (name, value) not in chosen} == set(), name


CHOICES = {
    "schedule": {"gpipe", "1f1b", "interleaved", "looped", "zerobubble", "zbv", "dualpipev"},
    "context_method": {"ring", "ulysses"},
    "recompute": {"none", "ckpt", "ckpt2", "ckptattn", "selective"},
    "zero": {1, 2, 3},
    "sequence_parallel": {False, True},
    "micro_batch": {1, 2, 4},
    "compile": {False, True},
}


def test_nan_and_a_wrong_digest_never_pass(references: dict[Any, Any]) -> None:
    good = references["fp64", "grouped-query"]
    assert distance(good, good).within("fp64")
    for key in ("losses", "norms"):
        assert not distance(good | {key: [math.nan, *good[key][1:]]}, good).within("fp64")
    assert not distance(good | {"digests": ["0" * 16, *good["digests"][1:]]}, good).within("fp64")
    broken = {name: tensor.clone() for name, tensor in good["parameters"].items()}
    broken["head.norm.weight"][0] = math.nan
    assert not distance(good | {"parameters": broken}, good).within("fp64")
