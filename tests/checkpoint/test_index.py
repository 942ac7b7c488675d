"""index.json is read back as it was written, or not at all."""

from __future__ import annotations

import json

import pytest

from torchlayout.checkpoint import Chunk, Index, StoredTensor

INDEX = Index(
    {"step": 3, "data": None, "config": {"optimizer": {"betas": [0.9, 0.95]}}},
    {
        "b": StoredTensor("F32", (4, 3), (Chunk((0, 0), (2, 3), "one", 8, 32), Chunk((2, 0), (2, 3), "two", 0, 24))),
        "a": StoredTensor("U8", (), (Chunk((), (), "one", 0, 1),)),
        "empty": StoredTensor("BF16", (0, 3), (Chunk((0, 0), (0, 3), "one", 32, 32),)),
    },
)


def test_an_index_is_read_back_as_it_was_written() -> None:
    assert Index.from_json(INDEX.to_json()) == INDEX
    assert list(json.loads(INDEX.to_json())["tensors"]) == ["a", "b", "empty"]


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"format": None}, {"tensors": {"a": {"dtype": "F32", "shape": [1]}}}, {"tensors": []}],
    ids=str,
)
def test_another_format_is_refused(change: dict[str, object]) -> None:
    raw = json.loads(INDEX.to_json()) | change
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        Index.from_json(json.dumps(raw))


def test_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        Index({"loss": float("nan")}, {}).to_json()
