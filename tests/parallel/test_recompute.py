from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

from harness.memory import Alive
from parallel.memory_ranks import MODEL, activations
from parallel.ranks import Call, on_ranks
from torchlayout.config import ModelConfig
from torchlayout.model.count import shapes
from torchlayout.train.environment import process_group

MODES = ("fsdp1", "fsdp1+selective", "fsdp1+ckpt2", "fsdp1+ckpt3", "fsdp1+ckpt", "fsdp1+ckptattn")
MATH = ("fsdp1+math", "fsdp1+math+ckptattn")
SEQUENCE = 128
LONG = 512


def raw(sequence: int = SEQUENCE, precision: str = "fp32", loss: str = "chunked") -> dict[str, Any]:
    return {
        "model": MODEL,
        "data": {"path": "none", "sequence_length": sequence},
        "batch": {"global_size": 1},
        "precision": {"parameters": precision},
        "kernels": {"loss": loss},
    }


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    torch.set_num_threads(1)
    with process_group(torch.device("cpu"), 60):
        yield


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, str], dict[str, Any]]:
    """By precision and label."""
    return {
        (precision, label): activations(label, raw(precision=precision))
        for precision in ("fp32", "bf16")
        for label in (*MODES, *MATH)
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("label", [*MODES, *MATH])
def test_blocks_keep_what_the_formula_says_to_the_byte(label: str, precision: str, measured: Any) -> None:
    found = measured[precision, label]
    assert found["bytes"] == found["bytes by formula"]


def test_what_is_recomputed_is_not_kept(measured: Any) -> None:
    kept = {label: measured["fp32", label]["bytes"] for label in (*MODES, *MATH)}
    order = ("fsdp1", "fsdp1+ckpt3", "fsdp1+selective", "fsdp1+ckpt2", "fsdp1+ckpt")
    assert all(kept[more] > 1.05 * kept[less] for more, less in pairwise(order))
    assert kept["fsdp1+ckpt"] == 8 * SEQUENCE * MODEL["hidden_size"] * 4, "the blocks' inputs and nothing else"
    # Of a flash kernel there is little to recompute, of a score matrix very much.
    assert 0.99 * kept["fsdp1"] < kept["fsdp1+ckptattn"] < kept["fsdp1"]
    assert kept["fsdp1+math+ckptattn"] == kept["fsdp1+ckptattn"] < kept["fsdp1+math"] / 1.4


@pytest.mark.parametrize("label", MODES)
def test_the_flops_that_backward_does_again_are_those_that_are_counted(label: str, measured: Any) -> None:
    found = measured["fp32", label]
    assert found["recomputed"] == pytest.approx(found["recomputed by formula"], rel=1e-12)


def test_the_plain_loss_recomputes_nothing() -> None:
    found = activations("fsdp1", raw(loss="plain"))
    assert found["recomputed"] == found["recomputed by formula"] == 0


@pytest.mark.parametrize("label", MODES)
def test_parameters_keep_their_names(label: str, measured: Any) -> None:
    assert measured["fp32", label]["names"] == list(shapes(ModelConfig(**MODEL)))


@pytest.fixture(scope="module")
def on_two_context_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    labels = ("cp2", "cp2+ulysses", "cp2+ckpt", "cp2+ulysses+ckpt")
    calls = {
        label: Call("memory_ranks:activations", {"label": label, "raw": raw(sequence=LONG, precision="bf16")})
        for label in labels
    }
    return on_ranks(2, calls, tmp_path_factory.mktemp("context-memory"))


@pytest.mark.ranks
@pytest.mark.parametrize("label", ["cp2", "cp2+ulysses", "cp2+ckpt", "cp2+ulysses+ckpt"])
def test_activations_of_a_rank_fall_as_one_over_the_context_ranks(label: str, on_two_context_ranks: Any) -> None:
    alone = activations("fsdp1+ckpt" if "ckpt" in label else "fsdp1", raw(sequence=LONG, precision="bf16"))
    for found in on_two_context_ranks[label]:
        assert found["bytes"] == pytest.approx(alone["bytes"] / 2, rel=0.1)
        assert found["bytes"] == found["bytes by formula"]


def test_a_storage_counts_once_and_for_as_long_as_something_holds_it() -> None:
    before = torch.ones(100)
    with Alive() as alive:
        view = before[:50]
        held = before + 1
        half, also = held[:50], held.view(10, 10)
        assert alive.bytes == 400
        del held, half
        assert alive.bytes == 400
        held = also * 2
        del also
        assert alive.bytes == 400
        held.untyped_storage().resize_(0)
        assert alive.bytes == 0
    assert view.sum() == 50
