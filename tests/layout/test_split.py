from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlayout.config import ModelConfig
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.layout.split import balance


def model(layers: int, vocabulary: int = 257) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=layers,
        num_attention_heads=8,
    )


def stage_costs(sizes: tuple[int, ...], costs: tuple[int, ...], first: int, last: int) -> list[int]:
    found, start = [], 0
    for size in sizes:
        found.append(sum(costs[start : start + size]))
        start += size
    found[0] += first
    found[-1] += last
    return found


def every_split(layers: int, stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, layers), stages - 1)
    bounds = ((0, *cut, layers) for cut in cuts)
    return [tuple(b - a for a, b in pairwise(bound)) for bound in bounds]


@settings(deadline=None)
@given(
    costs=st.lists(st.integers(0, 30), min_size=1, max_size=9).map(tuple),
    first=st.integers(0, 40),
    last=st.integers(0, 90),
    data=st.data(),
)
def test_the_slowest_stage_is_as_fast_as_in_the_best_of_all_splits(
    costs: tuple[int, ...], first: int, last: int, data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(costs)))

    def judged(sizes: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        found = stage_costs(sizes, costs, first, last)
        return max(found), sum(cost * cost for cost in found), sizes

    assert balance(costs, first, last, stages) == min(every_split(len(costs), stages), key=judged)


@settings(deadline=None)
@given(layers=st.integers(1, 40), data=st.data())
def test_every_layer_is_placed_exactly_once_and_no_stage_is_empty(layers: int, data: st.DataObject) -> None:
    pipeline = data.draw(st.integers(1, layers))
    stages = Layout(pipeline=pipeline).split(model(layers), 128)
    assert len(stages) == pipeline
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert all(len(stage) > 0 for stage in stages)


def test_thirty_layers_on_four_stages_stay_thirty() -> None:
    assert sum(len(stage) for stage in Layout(pipeline=4).split(model(30), 128)) == 30


def test_a_heavy_head_takes_layers_off_the_last_stage() -> None:
    light = [len(stage) for stage in Layout(pipeline=4).split(model(16, vocabulary=8), 128)]
    heavy = [len(stage) for stage in Layout(pipeline=4).split(model(16, vocabulary=2000), 128)]
    assert light == [4, 4, 4, 4]
    assert heavy[-1] < 4


def test_the_embedding_makes_the_first_stage_the_one_that_gets_less() -> None:
    assert [len(stage) for stage in Layout(pipeline=2).split(model(5, vocabulary=8), 128)] == [2, 3]


def test_virtual_stages_are_split_like_real_ones() -> None:
    layout = Layout(pipeline=2, schedule="interleaved", virtual_stages=3)
    stages = layout.split(model(12), 128)
    assert len(stages) == layout.stages == 6
    assert [layer for stage in stages for layer in stage] == list(range(12))


def test_more_stages_than_layers_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="4 pipeline stages are more than num_hidden_layers = 3") as caught:
        Layout(pipeline=4).split(model(3), 128)
    assert len(caught.value.problems) == 1
