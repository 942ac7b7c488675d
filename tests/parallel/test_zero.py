from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from parallel.memory_ranks import MODEL
from parallel.ranks import Call, on_ranks

LAYOUTS = ("fsdp4", "fsdp4+zero2", "fsdp4+zero1", "dp4", "dp2-fsdp2+zero1", "fsdp2-cp2")
FORMATS = (("bf16", "fp32"), ("bf16", "bf16"))


def raw(precision: str, reduce: str) -> dict[str, Any]:
    return {
        "model": MODEL | {"num_hidden_layers": 2},
        "data": {"path": "none", "sequence_length": 16},
        "batch": {"global_size": 12},
        "precision": {"parameters": precision, "reduce": reduce},
    }


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each of four ranks held, by layout and formats."""
    calls = {
        f"{label} {precision} {reduce}": Call("memory_ranks:held", {"label": label, "raw": raw(precision, reduce)})
        for label, (precision, reduce) in product(LAYOUTS, FORMATS)
    }
    return on_ranks(4, calls, tmp_path_factory.mktemp("shard"))


@pytest.mark.ranks
@pytest.mark.parametrize("formats", FORMATS, ids=" reduced in ".join)
@pytest.mark.parametrize("label", LAYOUTS)
def test_parameters_gradients_and_states_take_the_bytes_that_their_formula_says(
    label: str, formats: tuple[str, str], outcomes: dict[str, list[Any]]
) -> None:
    of_ranks = outcomes[f"{label} {formats[0]} {formats[1]}"]
    expected = of_ranks[0]["formula"]
    for kind in ("gathered", "unsharded_gradients"):
        # Shards are of equal size but for the last, so a gathered parameter has a row's padding at most.
        assert all(rank["measured"][kind] == pytest.approx(expected[kind], rel=0.02) for rank in of_ranks), kind
    for kind in ("parameters", "gradients", "states"):
        mean = sum(rank["measured"][kind] for rank in of_ranks) / 4
        assert mean == pytest.approx(expected[kind], rel=0.02), kind
