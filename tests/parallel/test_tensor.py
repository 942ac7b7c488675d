from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from parallel.ranks import Call, on_ranks
from parallel.tensor_ranks import BATCH, CHUNK, SEQUENCE

RANKS = (2, 4)
VOCABULARIES = (64, 257, 509, 13)
"""Even, two uneven ones, and one of which the last of four ranks holds a single row."""


def name(vocabulary: int, sequence_parallel: bool, chunked: bool) -> str:
    return f"{vocabulary} rows{', sp' if sequence_parallel else ''}{', chunked' if chunked else ''}"


CALLS = {
    name(*values): Call(
        "tensor_ranks:vocabulary_loss", dict(zip(("vocabulary", "sequence_parallel", "chunked"), values, strict=True))
    )
    for values in product(VOCABULARIES, (False, True), (False, True))
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[Any]]]:
    return {ranks: on_ranks(ranks, CALLS, tmp_path_factory.mktemp("tensor")) for ranks in RANKS}


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", CALLS)
def test_loss_and_gradients_over_vocabulary_shards_are_the_plain_ones(case: str, ranks: int, outcomes: Any) -> None:
    for found in outcomes[ranks][case]:
        assert {part: found[part] for part in ("loss", "hidden", "weight") if not found[part] <= 1e-12} == {}


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_no_rank_holds_more_logits_than_a_chunk_of_its_own_rows(
    sequence_parallel: bool, ranks: int, outcomes: Any
) -> None:
    rows = -(-509 // ranks)
    for found in outcomes[ranks][name(509, sequence_parallel, chunked=True)]:
        assert found["largest"] <= CHUNK * rows
    for found in outcomes[ranks][name(509, sequence_parallel, chunked=False)]:
        assert BATCH * SEQUENCE * (rows - ranks) <= found["largest"] <= BATCH * SEQUENCE * rows
