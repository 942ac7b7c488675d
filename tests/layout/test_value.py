from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from torchlayout.errors import InputError
from torchlayout.layout import Layout


def test_a_layout_is_frozen_and_equal_by_value() -> None:
    layout = Layout(shard=8)
    assert layout == Layout.parse("fsdp8")
    assert len({layout, Layout(shard=8)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.shard = 4  # type: ignore[misc]


def test_world_data_ranks_and_stages_are_products() -> None:
    layout = Layout.parse("pp2-dp3-fsdp5-cp7-tp11+interleaved4")
    assert layout.world == 2 * 3 * 5 * 7 * 11
    assert layout.data_ranks == 15
    assert layout.stages == 8


@pytest.mark.parametrize(
    ("layout", "zero"),
    [(Layout(shard=2), 3), (Layout(pipeline=2), 2), (Layout(pipeline=2, zero=3), 3), (Layout(zero=1), 1)],
)
def test_the_zero_level_is_resolved_by_the_pipeline(layout: Layout, zero: int) -> None:
    assert layout.zero == zero


def test_values_that_mean_the_same_are_one_value() -> None:
    assert Layout(shard=2, zero=3) == Layout(shard=2)
    assert Layout(recompute="ckpt1") == Layout(recompute="ckpt")
    assert Layout(pipeline=2, schedule="zbv") == Layout(pipeline=2, schedule="zbv", virtual_stages=2)


@pytest.mark.parametrize(
    ("recompute", "every"), [("none", 0), ("ckpt", 1), ("ckpt3", 3), ("ckptattn", 0), ("selective", 0)]
)
def test_recompute_every_says_which_blocks_are_recomputed(recompute: str, every: int) -> None:
    assert Layout(recompute=recompute).recompute_every == every


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("pp4", [(0,), (1,), (2,), (3,)]),
        ("pp2+interleaved3", [(0, 2, 4), (1, 3, 5)]),
        ("pp3+looped2", [(0, 3), (1, 4), (2, 5)]),
        ("pp3+zbv", [(0, 5), (1, 4), (2, 3)]),
        ("pp2+dualpipev", [(0, 3), (1, 2)]),
    ],
)
def test_stages_go_round_in_a_loop_or_down_and_up_in_a_v(label: str, expected: list[tuple[int, ...]]) -> None:
    layout = Layout.parse(label)
    assert [layout.stages_of(rank) for rank in range(layout.pipeline)] == expected
    assert sorted(s for stages in expected for s in stages) == list(range(layout.stages))


def test_a_rank_outside_the_pipeline_has_no_stages() -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        Layout(pipeline=2).stages_of(2)


def test_micro_batches_follow_from_the_global_batch() -> None:
    assert Layout.parse("dp2-fsdp4-tp2+mb2").micro_batches(64) == 4


@pytest.mark.parametrize(("batch", "nearest"), [(30, "16, 32"), (15, "16"), (0, "16")])
def test_a_global_batch_that_does_not_divide_prints_the_equation_and_the_nearest(batch: int, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        Layout.parse("dp2-fsdp4+mb2").micro_batches(batch)
    (sentence,) = caught.value.problems
    assert f"batch.global_size = {batch} is not 8 data ranks" in sentence
    assert f"({batch} / 16 = " in sentence
    assert sentence.endswith(f"nearest legal values of batch.global_size: {nearest}")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tensor": 0}, "layout.tensor = 0 is outside"),
        ({"shard": -2}, "layout.shard = -2 is outside"),
        ({"shard": 10**5000}, "more than nine digits"),
        ({"shard": True}, "layout.shard = True is not a whole number"),
        ({"shard": 2.0}, "layout.shard = 2.0 is not a whole number"),
        ({"shard": "2"}, "layout.shard = '2' is not a whole number"),
        ({"micro_batch": 0}, "layout.micro_batch = 0"),
        ({"sequence_parallel": 1}, "neither true nor false"),
        ({"schedule": "zvb", "pipeline": 2}, "did you mean zbv?"),
        ({"schedule": "interleaved2", "pipeline": 2}, 'legal: layout.schedule = "interleaved" with'),
        ({"schedule": "interleaved", "pipeline": 2}, "layout.virtual_stages = 1 with"),
        ({"schedule": "zbv", "pipeline": 2, "virtual_stages": 3}, "legal: 2"),
        ({"virtual_stages": 2, "pipeline": 2}, "has one stage on each rank"),
        ({"virtual_stages": 2}, "has one stage on each rank"),
        ({"schedule": "gpipe"}, "layout.pipeline = 1"),
        ({"context_method": "ulysses"}, "layout.context = 1"),
        ({"context_method": None}, "layout.context_method = None is not a word"),
        ({"sequence_parallel": True}, "layout.tensor = 1"),
        ({"zero": 4}, "layout.zero = 4 is no level"),
        ({"zero": True}, "layout.zero = True is no level"),
        ({"zero": 2.0}, "layout.zero = 2.0 is no level"),
        ({"recompute": "ckpt0"}, 'layout.recompute = "ckpt0" is unknown'),
        ({"recompute": "full"}, 'layout.recompute = "full" is unknown'),
        ({"attention": "sdpaa"}, "did you mean sdpa?"),
        ({"norm": "rms"}, 'layout.norm = "rms" is unknown'),
        ({"norm": ["fused"]}, "is not a word"),
    ],
)
def test_a_structural_mistake_is_refused_at_construction(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as caught:
        Layout(**fields)  # type: ignore[arg-type]
    (sentence,) = caught.value.problems
    assert says in sentence
    assert "\n" not in sentence


def test_all_structural_mistakes_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Layout(tensor=0, norm="rms", zero=9)
    assert len(caught.value.problems) == 3
    assert str(caught.value) == "\n".join(caught.value.problems)


def test_layouts_and_schedules_never_load_torch() -> None:
    code = (
        "import sys; from torchlayout.layout import Layout; import torchlayout.schedule, torchlayout.layout.split, "
        "torchlayout.layout.enumerate; Layout.parse('pp2-fsdp2'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
