from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlayout.config import ModelConfig, Precision
from torchlayout.layout import Layout
from torchlayout.layout.rules import divisors, micro_batch_problem


def model(**fields: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
    }
    return ModelConfig(**{**shape, **fields})


def check(label: str, *, batch: int = 64, sequence: int = 128, parameters: str = "bf16", **fields: Any) -> list[str]:
    precision = Precision(parameters=parameters)  # type: ignore[arg-type]
    return Layout.parse(label).check(model(**fields), batch, sequence, precision)


@pytest.mark.parametrize(
    "label",
    [
        "fsdp8",
        "dp2-fsdp4",
        "fsdp2-tp4+sp",
        "pp2-fsdp2-tp2+sp",
        "pp4-fsdp2+interleaved2+ckpt",
        "pp2+zbv+zero1",
        "pp2-cp2-tp2+sp+dualpipev",
        "cp2-tp2+ulysses+flash",
        "fsdp2+compile+selective",
        "pp3",
    ],
)
def test_a_legal_layout_breaks_no_rule(label: str) -> None:
    assert check(label, batch=48) == []


@pytest.mark.parametrize(
    ("label", "fields", "says"),
    [
        ("tp3", {"intermediate_size": 162}, "layout.tensor = 3 does not divide num_attention_heads = 8; legal"),
        (
            "tp4",
            {"num_key_value_heads": 2},
            "layout.tensor = 4 is above num_key_value_heads = 2, which leaves ranks without a key/value head; "
            "legal degrees: 1, 2",
        ),
        (
            "tp4",
            {"num_attention_heads": 24, "num_key_value_heads": 6, "hidden_size": 96},
            "layout.tensor = 4 does not divide num_key_value_heads = 6; legal degrees: 1, 2",
        ),
        (
            "tp8",
            {"intermediate_size": 100},
            "layout.tensor = 8 does not divide intermediate_size = 100; legal degrees: 1, 2, 4",
        ),
        (
            "tp4+sp",
            {"sequence": 130},
            "data.sequence_length = 130 is not divisible by layout.tensor = 4, as sequence parallelism needs; "
            "nearest legal values: 128, 132",
        ),
        (
            "cp2",
            {"sequence": 130},
            'data.sequence_length = 130 does not divide into 2 x layout.context = 4 parts ("ring"); '
            "nearest legal values: 128, 132",
        ),
        (
            "cp4+ulysses",
            {"sequence": 3},
            'data.sequence_length = 3 does not divide into layout.context = 4 parts ("ulysses"); '
            "nearest legal values: 4",
        ),
        (
            "cp2-tp8+sp",
            {"sequence": 136},
            "data.sequence_length = 136 is not divisible by layout.context x layout.tensor = 2 x 8",
        ),
        (
            "cp2-tp3+sp",
            {"num_attention_heads": 9, "hidden_size": 72, "intermediate_size": 162},
            "layout.context x layout.tensor = 2 x 3, as sequence parallelism needs; nearest legal values: 120, 132",
        ),
        (
            "cp4-tp4+ulysses",
            {},
            'layout.context = 4 under "ulysses" does not divide the 2 heads of a tensor rank '
            "(num_attention_heads = 8 / layout.tensor = 4); legal degrees: 1, 2",
        ),
        (
            "cp4+ulysses",
            {"num_key_value_heads": 2},
            'layout.context = 4 under "ulysses" does not divide the 2 heads of a tensor rank (num_key_value_heads',
        ),
        (
            "pp9",
            {},
            "layout.pipeline = 9 makes 9 stages, more than num_hidden_layers = 8, which leaves a stage empty; "
            "legal: at most 8 stages",
        ),
        ("pp4+looped3", {}, "layout.pipeline = 4 with 3 stages on each rank makes 12 stages, more than"),
        (
            "dp2-fsdp4+mb2",
            {"batch": 40},
            "batch.global_size = 40 is not 8 data ranks (layout.replicate = 2 x layout.shard = 4) x "
            "layout.micro_batch = 2 x a whole number of micro-batches (40 / 16 = 2.5); nearest legal values of "
            "batch.global_size: 32, 48",
        ),
        (
            "pp4-fsdp2",
            {"batch": 6},
            'layout.schedule = "1f1b" on layout.pipeline = 4 needs at least 4 micro-batches, one for each '
            "pipeline rank, and there are 3; nearest legal numbers of micro-batches: 4, from "
            "batch.global_size = 8 (now 6)",
        ),
        ("pp4+dualpipev", {"batch": 7}, "needs at least 8 micro-batches, one for each stage, and there are 7"),
        (
            "pp2+interleaved2",
            {"batch": 5},
            "runs them in 2 equal rounds, so needs a multiple of 2, and there are 5; nearest legal numbers of "
            "micro-batches: 4, 6",
        ),
        ("pp2+zerobubble2", {"batch": 7}, "nearest legal numbers of micro-batches: 6, 8"),
        ("pp2+zbv+zero3", {}, 'layout.zero = 3 frees parameters between the halves of a backward that schedule "zbv"'),
        ("pp2+dualpipev+zero3", {}, "legal: zero 1 or 2, or schedule gpipe"),
        ("pp2+zerobubble2+compile", {}, "kernels.compile = true gives wrong gradients"),
        (
            "fsdp2+flash",
            {"parameters": "fp32"},
            'kernels.attention = "flash" computes in 16 bits and precision.parameters = "fp32"; legal: '
            'precision.parameters = "bf16"',
        ),
    ],
)
def test_a_violated_rule_is_one_sentence(label: str, fields: dict[str, Any], says: str) -> None:
    (sentence,) = check(label, **fields)
    assert says in sentence
    assert "legal" in sentence


@pytest.mark.parametrize("label", ["pp2+zbv", "pp2+dualpipev", "pp2+zerobubble2"])
def test_zero_bubble_schedules_are_refused_where_torch_is_silently_wrong(label: str) -> None:
    assert check(label) == []
    assert len(check(label + "+zero3")) == 1
    assert len(check(label + "+compile")) == 1
    assert len(check(label + "+selective")) == 1
    assert len(check(label + "+zero3+compile")) == 2


@pytest.mark.parametrize("kernel", ["flash", "flex"])
def test_a_ring_takes_only_kernels_that_give_a_log_sum(kernel: str) -> None:
    (sentence,) = check(f"cp2+{kernel}")
    assert "legal" in sentence
    assert check(f"cp2+ulysses+{kernel}") == []
    assert check("cp2+math") == []


def test_every_violated_rule_is_told() -> None:
    sentences = check("pp16-fsdp3-tp3+sp+compile+zbv+zero3+flash", batch=32, sequence=127, parameters="fp64")
    assert len(sentences) == len(set(sentences)) == 8


def test_an_uneven_vocabulary_and_uneven_layers_are_fine() -> None:
    assert check("pp3-tp4", vocab_size=509, num_hidden_layers=7) == []


def test_a_named_value_is_legal_when_it_is_taken() -> None:
    (sentence,) = check("dp2-fsdp4+mb2", batch=40)
    for size in re.findall(r"\d+", sentence.rsplit(":", 1)[1]):
        assert check("dp2-fsdp4+mb2", batch=int(size)) == []


@settings(deadline=None)
@given(pipeline=st.integers(2, 6), count=st.integers(1, 40), schedule=st.sampled_from(["1f1b", "interleaved"]))
def test_named_numbers_of_micro_batches_are_accepted(pipeline: int, count: int, schedule: str) -> None:
    virtual = 2 if schedule == "interleaved" else 1
    layout = Layout(pipeline=pipeline, schedule=schedule, virtual_stages=virtual)
    problem = micro_batch_problem(layout, count)
    if problem:
        for number in re.findall(r"\d+", problem.rsplit(":", 1)[1]):
            assert micro_batch_problem(layout, int(number)) is None


@settings(deadline=None)
@given(
    tensor=st.integers(1, 12),
    context=st.integers(1, 6),
    ulysses=st.booleans(),
    parallel=st.booleans(),
    sequence=st.integers(1, 200),
    heads=st.integers(1, 16),
)
def test_a_passed_check_means_that_every_division_is_whole(
    tensor: int, context: int, ulysses: bool, parallel: bool, sequence: int, heads: int
) -> None:
    method = "ulysses" if ulysses and context > 1 else "ring"
    layout = Layout(tensor=tensor, context=context, context_method=method, sequence_parallel=parallel and tensor > 1)
    shape = SimpleNamespace(
        num_attention_heads=heads, num_key_value_heads=heads, intermediate_size=heads, num_hidden_layers=1
    )
    if layout.check(shape, 1, sequence, Precision()):  # type: ignore[arg-type]
        return
    assert heads % tensor == 0
    assert sequence % context == 0
    local = sequence // context
    assert method == "ulysses" or context == 1 or local % 2 == 0
    assert not layout.sequence_parallel or local % tensor == 0
    assert method == "ring" or heads // tensor % context == 0


@settings(deadline=None)
@given(st.integers(1, 5000))
def test_divisors_are_all_the_divisors(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
