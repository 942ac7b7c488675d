from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from harness.compare import distance
from harness.draws import Draw, combination, configuration, draw
from harness.launch import train_layouts
from harness.reference import train_plainly
from torchlayout.config import Config
from torchlayout.layout import Layout

SEED = 2026
DRAWS = [(number, ranks) for ranks in (3, 4) for number in range(3)]
"""The draws trained here, by number and ranks; benchmarks/random_layouts.py trains a hundred."""


def drawn(number: int, ranks: int, corpus: Path | str = "none") -> Draw:
    return draw(number, SEED, str(corpus), ranks)


@pytest.fixture(scope="module")
def outcomes(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Any]:
    """What each draw came to, in one launch for each number of ranks."""
    together: dict[tuple[int, int], Any] = {}
    for ranks in {ranks for _, ranks in DRAWS}:
        keys = [key for key in DRAWS if key[1] == ranks]
        jobs = [drawn(*key, small_corpus).job for key in keys]
        together |= dict(zip(keys, train_layouts(ranks, jobs, tmp_path_factory.mktemp("random")), strict=True))
    return together


@pytest.mark.ranks
@pytest.mark.parametrize("key", DRAWS, ids=lambda key: str(drawn(*key).layout))
def test_any_legal_layout_of_any_model_trains_as_one_plain_process_does(
    key: tuple[int, int], outcomes: dict[Any, Any], small_corpus: Path
) -> None:
    case = drawn(*key, small_corpus)
    apart = distance(outcomes[key], train_plainly(case.raw))
    assert apart.within("fp64"), f"{case}: {apart}"


def test_a_draw_is_always_the_same_and_legal() -> None:
    for number in range(10):
        case = draw(number, SEED, "none")
        assert case == draw(number, SEED, "none")
        config = Config.from_dict(case.raw | {"layout": {"label": str(case.layout)}})
        assert config.layout_for(case.layout.world) == case.layout
        assert config.check(case.layout.world) == []


def test_any_combination_of_choices_is_either_enumerated_or_refused_in_sentences() -> None:
    rng = random.Random(SEED)
    refused = 0
    for _ in range(40):
        raw, world = configuration(rng, "none"), rng.choice([1, 2, 3, 4, 6, 8])
        config = Config.from_dict(raw)
        given = (config.model, config.batch.global_size, config.data.sequence_length, config.precision)
        for layout in (combination(rng, world) for _ in range(10)):
            problems = Config.from_dict(raw | {"layout": {"label": str(layout)}}).check(world)
            assert all("legal" in problem and problem.count("\n") == 0 for problem in problems)
            values = {name: getattr(layout, name) for name in Layout.__dataclass_fields__}
            if layout.virtual_stages == 1:
                del values["virtual_stages"]  # a constraint on schedules that loop
            assert (layout in Layout.enumerate(world, *given, **values)) == (problems == []), str(layout)
            refused += bool(problems)
    assert refused > 100


def test_a_layout_of_another_world_is_refused() -> None:
    raw = configuration(random.Random(SEED), "none") | {"layout": {"label": "fsdp2"}}
    (sentence,) = Config.from_dict(raw).check(3)
    assert "2 ranks, but there are 3" in sentence
