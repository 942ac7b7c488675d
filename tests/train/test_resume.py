"""A checkpoint of any layout continues in any other, exactly. benchmarks/resume.py has all pairs of eight layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.crash import facts_that_must_not_depend_on_crashes, train
from harness.resume import SAVED_AT, resume_pairs, save_under_each

# zero1 and zero3, sequence parallelism, virtual stages, a V with both ends on one rank, context and replicas.
LAYOUTS = ("fsdp2+zero1", "tp2+sp", "pp2+interleaved2", "pp2-tp2+sp+zbv", "dp2-cp2")
PAIRS = [(saved, (LAYOUTS * 2)[number + on]) for number, saved in enumerate(LAYOUTS) for on in range(3)]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, small_corpus: Path) -> dict[str, dict[str, Any]]:
    return save_under_each(LAYOUTS, str(small_corpus), folder)


@pytest.fixture(scope="module")
def resumed(folder: Path, small_corpus: Path, uninterrupted: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return resume_pairs(PAIRS, str(small_corpus), folder)


@pytest.mark.ranks
@pytest.mark.parametrize("pair", PAIRS, ids=" -> ".join)
def test_the_next_steps_are_those_of_the_run_that_was_not_interrupted(
    pair: tuple[str, str], resumed: dict[Any, Any], uninterrupted: dict[str, Any]
) -> None:
    ours, expected = resumed[pair], uninterrupted[pair[0]]
    assert ours["digests"] == expected["digests"]
    assert ours["losses"] == pytest.approx(expected["losses"], rel=1e-10, abs=0)
    assert ours["norms"] == pytest.approx(expected["norms"], rel=1e-10, abs=0)


@pytest.mark.ranks
@pytest.mark.parametrize("label", LAYOUTS)
def test_in_the_same_layout_they_are_the_same_bits(
    label: str, resumed: dict[Any, Any], uninterrupted: dict[str, Any]
) -> None:
    assert resumed[label, label] == uninterrupted[label]


@pytest.mark.ranks
def test_what_is_saved_does_not_depend_on_the_layout(resumed: dict[Any, Any], uninterrupted: dict[str, Any]) -> None:
    for (saved, label), outcome in resumed.items():
        assert outcome["saved_weights"] == uninterrupted[saved]["saved_weights"], label


@pytest.mark.ranks
@pytest.mark.usefixtures("resumed")
def test_every_element_is_stored_once_and_every_rank_writes_some(folder: Path) -> None:
    for saved, label in PAIRS:
        index = json.loads((folder / f"{saved} {label}" / f"step_{SAVED_AT}" / "index.json").read_text())
        sizes = {"F64": 8, "F32": 4, "U8": 1}
        for name, tensor in index["tensors"].items():
            expected = sizes[tensor["dtype"]]
            for size in tensor["shape"]:
                expected *= size
            assert sum(chunk["end"] - chunk["start"] for chunk in tensor["chunks"]) == expected, name
        writers = {chunk["file"] for tensor in index["tensors"].values() for chunk in tensor["chunks"]}
        assert len(writers) == index["state"]["world"]


@pytest.mark.ranks
def test_a_run_whose_ranks_are_killed_is_the_run_that_nobody_disturbed(tmp_path: Path, small_corpus: Path) -> None:
    undisturbed, _, _ = train(small_corpus, tmp_path / "undisturbed", steps=24)
    killed, kills, _ = train(small_corpus, tmp_path / "killed", steps=24, kills=2)
    assert kills == 2
    assert facts_that_must_not_depend_on_crashes(killed) == facts_that_must_not_depend_on_crashes(undisturbed)
    assert killed.read_run()["resumed_from"] is not None
