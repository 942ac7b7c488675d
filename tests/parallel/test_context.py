from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from parallel.context_ranks import BATCH
from parallel.ranks import Call, on_ranks
from torchlayout.model.attention import attention_mask
from torchlayout.parallel.context import held_positions
from torchlayout.parallel.context.block import Sight, attend, attend_backward

METHODS = ("ring", "ulysses")
RANKS = (2, 4)
LIMITS = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 6e-2}
"""Of absolute differences; outputs and gradients are of order one."""
HEADS = {"multi-head": (4, 4), "grouped-query": (8, 4)}
ATTENTIONS = {
    f"{method}, {heads}, {'documents' if documents else 'one document'}, {kernel}, {dtype}": Call(
        "context_ranks:compared",
        {
            "method": method,
            "heads": HEADS[heads][0],
            "kv_heads": HEADS[heads][1],
            "documents": documents,
            "kernel": kernel,
            "dtype": dtype,
        },
    )
    for method, heads, documents, (kernel, dtype) in product(
        METHODS,
        HEADS,
        (False, True),
        [("sdpa", "float64"), ("math", "float64"), ("sdpa", "float32"), ("sdpa", "bfloat16")],
    )
}
WORK = {f"work of {method}": Call("context_ranks:work", {"method": method, "sequence": 64}) for method in METHODS}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[Any]]]:
    """What every rank found, by the number of ranks."""
    calls = ATTENTIONS | WORK | {"there and back": Call("context_ranks:transposed_there_and_back")}
    return {ranks: on_ranks(ranks, calls, tmp_path_factory.mktemp("context")) for ranks in RANKS}


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_across_ranks_is_attention_in_one_process(name: str, ranks: int, outcomes: Any) -> None:
    limit = LIMITS[ATTENTIONS[name].arguments["dtype"]]
    for differences in outcomes[ranks][name]:
        assert {part: size for part, size in differences.items() if not size <= limit} == {}


@pytest.mark.ranks
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_share_the_work_of_a_causal_mask_equally(method: str, ranks: int, outcomes: Any) -> None:
    counted = outcomes[ranks][f"work of {method}"]
    assert len(set(counted)) == 1
    assert sum(counted) == BATCH * 4 * 64 * 65 // 2


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", RANKS)
def test_the_all_to_all_of_ulysses_gives_whole_sequences_and_is_undone_by_its_counterpart(
    ranks: int, outcomes: Any
) -> None:
    assert outcomes[ranks]["there and back"] == [True] * ranks


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_ranks_hold_every_position_once_in_ascending_order_and_equally_many(method: str, ranks: int) -> None:
    sequence = 48
    held = [held_positions(method, sequence, rank, ranks) for rank in range(ranks)]
    assert {len(positions) for positions in held} == {sequence // ranks}
    assert all((positions.diff() > 0).all() for positions in held)
    assert sorted(torch.cat(held).tolist()) == list(range(sequence))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_under_a_ring_the_queries_of_each_rank_see_equally_many_keys(ranks: int) -> None:
    visible = attention_mask(torch.zeros(1, 48, dtype=torch.long))[0, 0]
    seen = {int(visible[held_positions("ring", 48, rank, ranks)].sum()) for rank in range(ranks)}
    assert seen == {48 * 49 // 2 // ranks}


@pytest.mark.parametrize("causal", [False, True])
def test_a_query_that_sees_no_key_of_a_block_adds_nothing_and_is_no_nan(causal: bool) -> None:
    q, k, v, gradient = torch.randn(4, 1, 2, 5, 8, dtype=torch.float64)
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    mask[:, :, 2] = False
    sight = Sight(causal, mask, flash=True)
    block = attend(q, k, v, sight)
    assert (block.out[:, :, 2] == 0).all()
    assert block.log_sum[:, :, 2].isneginf().all()
    assert block.log_sum[:, :, [0, 1, 3, 4]].isfinite().all()
    # Over all keys, of which these are but some, the query has seen something.
    whole = block._replace(log_sum=block.log_sum.masked_fill(block.log_sum.isneginf(), 0.0))
    gradients = attend_backward(gradient, q, k, v, whole, sight)
    assert all(part.isfinite().all() for part in gradients)
    assert (gradients.q[:, :, 2] == 0).all()


def test_blocks_of_keys_combine_to_attention_over_all_of_them() -> None:
    q, gradient = torch.randn(2, 1, 2, 6, 8, dtype=torch.float64)
    k, v = torch.randn(2, 1, 2, 10, 8, dtype=torch.float64)
    everything = Sight(causal=False, mask=None, flash=False)
    whole = attend(q, k, v, everything)
    for flash in (False, True):
        sight = everything._replace(flash=flash)
        first, second = (attend(q, k[:, :, keys], v[:, :, keys], sight) for keys in (slice(0, 4), slice(4, 10)))
        both = torch.logaddexp(first.log_sum, second.log_sum)
        torch.testing.assert_close(both, whole.log_sum, rtol=1e-13, atol=1e-13)
        parts = [
            attend_backward(gradient, q, k[:, :, keys], v[:, :, keys], whole, sight)
            for keys in (slice(0, 4), slice(4, 10))
        ]
        expected = attend_backward(gradient, q, k, v, whole, everything)
        torch.testing.assert_close(parts[0].q + parts[1].q, expected.q, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(torch.cat([part.k for part in parts], 2), expected.k, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(torch.cat([part.v for part in parts], 2), expected.v, rtol=1e-12, atol=1e-13)
