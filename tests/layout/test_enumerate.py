from __future__ import annotations

from itertools import islice, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlayout.config import ModelConfig, Precision
from torchlayout.errors import InputError
from torchlayout.layout import Layout, words

MODEL = ModelConfig(
    vocab_size=257,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
)


def enumerated(world: int, batch: int = 8, sequence: int = 32, **constraints: Any) -> list[Layout]:
    return list(Layout.enumerate(world, MODEL, batch, sequence, Precision(), **constraints))


@settings(deadline=None, max_examples=20)
@given(world=st.integers(1, 12), batch=st.integers(1, 12), sequence=st.sampled_from([7, 8, 12, 32]))
def test_only_legal_layouts_are_enumerated_and_none_twice(world: int, batch: int, sequence: int) -> None:
    found = enumerated(world, batch, sequence)
    assert len(set(found)) == len(found)
    assert all(layout.world == world for layout in found)
    assert all(layout.check(MODEL, batch, sequence, Precision()) == [] for layout in found)


def test_no_legal_layout_is_missing() -> None:
    world, batch, sequence = 4, 4, 32
    legal = set()
    degrees = [d for d in product((1, 2, 4), repeat=5) if d[0] * d[1] * d[2] * d[3] * d[4] == world]
    for degree, micro, sp, schedule, virtual, method, recompute, zero in product(
        degrees,
        (1, 2, 4),
        (False, True),
        words.SCHEDULES,
        (1, 2, 3, 4),
        words.CONTEXT_METHODS,
        words.RECOMPUTES,
        words.ZEROS,
    ):
        try:
            layout = Layout(*degree, micro, sp, schedule, virtual, method, recompute, zero)  # type: ignore[arg-type]
        except InputError:
            continue
        if not layout.check(MODEL, batch, sequence, Precision()):
            legal.add(layout)
    assert set(enumerated(world, batch, sequence)) == legal


def test_the_order_is_always_the_same_and_nothing_is_computed_ahead() -> None:
    assert enumerated(4) == enumerated(4)
    huge = Layout.enumerate(2**20, MODEL, 2**30, 2**20, Precision())
    assert len(list(islice(huge, 3))) == 3


def test_constraints_keep_only_what_they_allow() -> None:
    found = enumerated(4, tensor=(1, 2), recompute="ckpt2", micro_batch=1, zero=3, attention=("sdpa", "math"))
    assert found
    assert {layout.tensor for layout in found} == {1, 2}
    assert {layout.recompute for layout in found} == {"ckpt2"}
    assert {layout.attention for layout in found} == {"sdpa", "math"}
    assert {(layout.micro_batch, layout.zero) for layout in found} == {(1, 3)}


def test_a_choice_is_bound_only_where_its_axis_exists() -> None:
    found = enumerated(4, schedule="gpipe", sequence_parallel=True, context_method="ulysses")
    assert {layout.schedule for layout in found if layout.pipeline > 1} == {"gpipe"}
    assert {layout.sequence_parallel for layout in found if layout.tensor > 1} == {True}
    assert {layout.context_method for layout in found if layout.context > 1} == {"ulysses"}
    assert Layout.parse("fsdp4") in found


def test_values_that_mean_the_same_are_enumerated_once() -> None:
    found = enumerated(2, recompute=("ckpt", "ckpt1"))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("constraints", "says"),
    [
        ({"tensr": 2}, "did you mean tensor?"),
        ({"schedule": "zvb"}, "did you mean zbv?"),
        ({"tensor": (2, 0)}, "layout.tensor = 0"),
        ({"virtual_stages": (1,)}, "layout.virtual_stages = 1"),
    ],
)
def test_a_wrong_constraint_is_refused_before_the_first_layout(constraints: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says.replace("?", r"\?")):
        Layout.enumerate(4, MODEL, 8, 32, Precision(), **constraints)
