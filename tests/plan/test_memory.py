from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.prices import job, layouts, machine
from torchlayout.layout import Layout
from torchlayout.plan.calibration import Calibration, replaced
from torchlayout.plan.measured.predict import reserved_bytes_of
from torchlayout.plan.memory.flight import in_flight
from torchlayout.plan.memory.peak import GIB, ITEMS, Memory, rank_memories, worst_memory
from torchlayout.plan.software import names as profiles
from torchlayout.plan.time.stages import stages
from torchlayout.schedule import actions, timeline

OTHERS = [name for name in profiles() if name != "torchlayout"]
"""Stacks whose memory is counted by fitted coefficients."""


def first(software: str, label: str, batch: int) -> Memory:
    """What the first pipeline rank needs."""
    return rank_memories(machine(software).blocks, job(label, batch=batch))[0]


@given(layouts, st.sampled_from(profiles()))
def test_memory_is_the_sum_of_its_items_and_none_is_negative(layout: Layout, software: str) -> None:
    for memory in rank_memories(machine(software).blocks, job(layout)):
        items = {name: getattr(memory, name) for name in ITEMS}
        assert all(item >= 0 for name, item in items.items() if name != "fragmentation")
        assert memory.bytes == pytest.approx(sum(items.values()), rel=1e-12)


@given(layouts, st.sampled_from(profiles()))
def test_the_worst_rank_is_found_without_looking_at_all(layout: Layout, software: str) -> None:
    blocks, asked = machine(software).blocks, job(layout)
    worst = max(memory.bytes for memory in rank_memories(blocks, asked))
    assert worst_memory(blocks, asked).bytes == pytest.approx(worst, rel=1e-12)


@given(layouts, st.sampled_from(OTHERS))
def test_more_devices_never_need_more_memory_each(layout: Layout, software: str) -> None:
    assume(layout.shard > 1)
    wider = dataclasses.replace(layout, shard=2 * layout.shard)
    before, after = (worst_memory(machine(software).blocks, job(one)).bytes for one in (layout, wider))
    assert after <= before * (1 + 1e-12)


@given(layouts, st.sampled_from(profiles()))
def test_recomputing_needs_hardly_more_memory_where_activations_do_not_count(layout: Layout, software: str) -> None:
    blocks = machine(software).blocks
    kept, again = (
        worst_memory(blocks, job(dataclasses.replace(layout, recompute=choice))).bytes for choice in ("none", "ckpt")
    )
    # One block is there whole and its input besides: more where the peak comes when the others are gone.
    assert again <= kept * (1 + 1e-3)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved2", "looped2", "zerobubble2", "zbv", "dualpipev"])
@pytest.mark.parametrize("micro_batches", [8, 16, 64])
def test_micro_batches_in_flight_are_those_of_the_schedule(schedule: str, micro_batches: int) -> None:
    layout = Layout.parse(f"pp4+{schedule}")
    asked = dataclasses.replace(job(layout), batch=micro_batches)
    played = timeline(actions(layout, micro_batches), lambda action: 1.0)
    counted = [sum(count for _, count in held) for held in in_flight(asked)]
    assert counted == [played.in_flight(rank) for rank in range(4)]


def test_early_stages_of_1f1b_hold_more_micro_batches() -> None:
    assert [held for ((_, held),) in in_flight(job("pp4-fsdp2"))] == [4, 3, 2, 1]


def test_memory_differs_by_stage() -> None:
    first, second, third, last = rank_memories(machine("nanotron").blocks, job("pp4-fsdp2+zero1"))
    assert first.activations > second.activations > third.activations
    assert last.logits > 0
    assert first.logits == second.logits == 0


@pytest.mark.parametrize("software", profiles())
@pytest.mark.parametrize("label", ["pp2", "pp4", "pp8", "pp4+interleaved2", "pp4+zbv"])
def test_every_layer_is_in_one_stage(software: str, label: str) -> None:
    asked = job(label)
    found = stages(machine(software).blocks, asked)
    assert sum(stage.layers for stage in found) == 40
    assert [stage.first for stage in found].count(True) == [stage.last for stage in found].count(True) == 1


def test_a_pipeline_that_counts_items_leaves_the_last_stage_light() -> None:
    found = stages(machine("scaling-2311.05610").blocks, job("pp2"))
    assert [stage.layers for stage in found] == [21, 19]


def test_scores_in_memory_grow_with_the_square_of_the_sequence() -> None:
    def kept(kernel: str, sequence: int) -> float:
        asked = job("fsdp8+zero1", sequence=sequence, attention=kernel)
        return worst_memory(machine("scaling-2311.05610").blocks, asked).activations

    extra = [kept("unfused", sequence) - kept("flash2", sequence) for sequence in (2048, 4096)]
    assert extra[1] == pytest.approx(4 * extra[0], rel=1e-9)


def test_zero1_shards_the_optimizer_alone() -> None:
    (memory,) = rank_memories(machine("nanotron").blocks, job("fsdp8+zero1"))
    count = memory.parameters / 2
    assert (memory.gradients / count, memory.optimizer / count) == (pytest.approx(2 + 4), pytest.approx(12 / 8))


@given(layouts, st.sampled_from(OTHERS))
def test_nothing_lies_idle_where_no_tensor_rank_gathers_whole_tensors(layout: Layout, software: str) -> None:
    memories = rank_memories(machine(software).blocks, job(layout))
    assert all((memory.spare > 0) <= (layout.tensor > 1) for memory in memories)


def test_later_micro_batches_that_fill_the_place_of_earlier_ones_leave_holes() -> None:
    few, more = (first("nanotron", "pp4-tp4+sp", batch) for batch in (4, 8))
    assert more.activations == few.activations
    assert more.spare > few.spare
    assert more.bytes > few.bytes


def test_micro_batches_in_flight_leave_holes_up_to_eight() -> None:
    # One layer a stage each: what differs is the micro-batches in flight.
    model = job("pp16").model.model_copy(update={"num_hidden_layers": 16})
    numbers = {"memory.refill": 1e-12}
    blocks = machine("scaling-2311.05610", replaced(Calibration(), numbers)).blocks
    asked = dataclasses.replace(job("pp16-tp2+sp", batch=64), model=model)
    spare = [memory.spare for memory in rank_memories(blocks, asked)]
    assert spare[:9] == [pytest.approx(spare[8])] * 9
    steps = [before - after for before, after in itertools.pairwise(spare[8:])]
    assert steps == [pytest.approx(steps[0])] * 7
    assert steps[0] > 0
    assert spare[15] == pytest.approx(0, abs=1e6)


def test_tensors_wait_for_other_streams_only_without_a_pipeline() -> None:
    streamed, plain = (machine(name).blocks for name in ("nanotron-early", "nanotron"))
    for label, longer in (("fsdp8-tp4+sp+zero1", True), ("pp2-fsdp4-tp4+sp+zero1", False)):
        early, late = (rank_memories(blocks, job(label))[0].spare for blocks in (streamed, plain))
        assert (early > late) == longer


def test_gradients_are_reduced_beside_the_fullest_moment_only_without_a_pipeline() -> None:
    def base(software: str, label: str) -> float:
        return first(software, label, 256).base

    beside = base("nanotron", "dp8") - base("scaling-2311.05610", "dp8")
    assert beside == pytest.approx(0.5 * 4 * first("nanotron", "dp8", 256).parameters / 2)
    assert base("nanotron", "pp2-dp4") == base("scaling-2311.05610", "pp2-dp4")


@given(layouts, st.sampled_from(OTHERS))
def test_torch_reserves_no_more_than_the_device_has(layout: Layout, software: str) -> None:
    there, asked = machine(software), job(layout)
    worst = rank_memories(there.blocks, asked)[0]
    reserved = reserved_bytes_of(there, asked)
    assert worst.bytes - worst.base <= reserved <= max(worst.bytes, there.hardware.memory_gib * GIB) - worst.base + 1


@given(layouts, st.sampled_from(profiles()), st.floats(0, 76))
def test_whether_it_fits_is_known_without_the_whole_account(layout: Layout, software: str, margin: float) -> None:
    looked, counted = (machine(software).estimate(job(layout)) for _ in range(2))
    assert looked.fits(margin) == (counted.memory.bytes + margin * 2**30 <= counted.capacity_bytes)
