"""How many graphs compiled blocks need. That they compute what plain ones do is the parity test's to show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from parallel.compile_ranks import graphs
from parallel.memory_ranks import MODEL
from parallel.ranks import Call, on_ranks
from torchlayout.train.environment import process_group

ON_TWO_RANKS = ("fsdp2+compile", "tp2+sp+compile", "cp2+compile", "cp2+ulysses+compile")


def raw(layers: int = 4) -> dict[str, Any]:
    return {
        "model": MODEL | {"num_hidden_layers": layers},
        "data": {"path": "none", "sequence_length": 16},
        "batch": {"global_size": 4},
        "precision": {"parameters": "fp32"},
    }


@pytest.fixture
def alone() -> Iterator[None]:
    with process_group(torch.device("cpu"), 60):
        yield


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    calls = {label: Call("compile_ranks:graphs", {"label": label, "raw": raw()}) for label in ON_TWO_RANKS}
    return on_ranks(2, calls, tmp_path_factory.mktemp("compile"))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("label", ["fsdp1+compile", "fsdp1+ckpt+compile", "fsdp1+ckptattn+compile"])
def test_one_graph_serves_all_blocks_in_every_step_and_a_second_one_evaluation(label: str) -> None:
    # Without gradients there is another graph: the saving of activations is part of the first.
    assert graphs(label, raw()) == {"graphs": [1, 1, 2], "breaks": {}}


@pytest.mark.usefixtures("alone")
def test_more_blocks_need_no_more_graphs() -> None:
    assert graphs("fsdp1+compile", raw(layers=9)) == {"graphs": [1, 1, 2], "breaks": {}}


@pytest.mark.ranks
@pytest.mark.parametrize("label", ["fsdp2+compile", "tp2+sp+compile"])
def test_sharded_blocks_too_are_one_graph(label: str, outcomes: dict[str, list[Any]]) -> None:
    assert outcomes[label] == [{"graphs": [1, 1, 2], "breaks": {}}] * 2


@pytest.mark.ranks
@pytest.mark.parametrize("label", ["cp2+compile", "cp2+ulysses+compile"])
def test_context_parallel_blocks_break_at_the_attention_core_and_nowhere_else(
    label: str, outcomes: dict[str, list[Any]]
) -> None:
    for found in outcomes[label]:
        (reason,) = found["breaks"]
        assert "torch.compiler.disable" in reason
        # The norm; projections up to the core; the output projection; the rest: of every block. Again to evaluate.
        assert found["graphs"] == [4, 4, 8]
