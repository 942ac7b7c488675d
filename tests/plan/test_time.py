from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.prices import A100, job, layouts, machine
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.plan.calibration import Calibration, replaced
from torchlayout.plan.software import Software
from torchlayout.plan.software import names as profiles
from torchlayout.plan.time.kernels import Kernels
from torchlayout.plan.time.links import Group, Links

FREE_LINKS = replaced(
    Calibration(),
    {
        "links.tensor_efficiency": 1e12,
        "links.node_efficiency": 1e12,
        "links.hop_efficiency": 1e12,
        "links.latency_seconds": 1e-12,
        "links.node_latency_seconds": 1e-12,
        "links.hop_seconds": 1e-12,
        "links.overlap": 1e-12,
    },
)
COMMUNICATION = ("tensor", "context", "shard", "hops", "reduce")


@given(layouts, st.sampled_from(profiles()))
def test_a_step_is_the_sum_of_its_items_and_none_is_negative(layout: Layout, software: str) -> None:
    time = machine(software).estimate(job(layout)).time
    items = [getattr(time, field.name) for field in dataclasses.fields(time)]
    assert all(item >= 0 for item in items)
    assert time.seconds == pytest.approx(sum(items), rel=1e-12)


@given(layouts, st.sampled_from(profiles()))
def test_free_links_leave_computing_alone(layout: Layout, software: str) -> None:
    time = machine(software, FREE_LINKS).estimate(job(layout)).time
    assert sum(getattr(time, name) for name in COMMUNICATION) < 1e-6 * time.seconds


@given(layouts)
def test_slower_links_never_make_a_step_faster(layout: Layout) -> None:
    slow = replaced(Calibration(), {"links.tensor_efficiency": 0.1, "links.node_efficiency": 0.1})
    fast, slower = machine().estimate(job(layout)).time, machine(calibration=slow).estimate(job(layout)).time
    assert slower.seconds >= fast.seconds * (1 - 1e-12)


@pytest.mark.parametrize("software", profiles())
def test_one_device_talks_to_nobody(software: str) -> None:
    time = machine(software).estimate(job("fsdp1")).time
    assert sum(getattr(time, name) for name in (*COMMUNICATION, "bubble")) == 0


@given(layouts)
def test_recomputing_blocks_never_makes_a_step_faster(layout: Layout) -> None:
    kept = machine().estimate(job(dataclasses.replace(layout, recompute="none"))).time.seconds
    again = machine().estimate(job(dataclasses.replace(layout, recompute="ckpt"))).time.seconds
    assert again > kept


@given(st.sampled_from([64, 128, 256]), layouts)
def test_a_larger_batch_takes_longer_and_uses_the_pipeline_better(batch: int, layout: Layout) -> None:
    small, large = (machine().estimate(job(layout, batch=b)) for b in (batch, 2 * batch))
    assert small.time.seconds < large.time.seconds
    assert large.mfu >= small.mfu * (1 - 1e-12)


@pytest.mark.parametrize("label", ["pp2-fsdp4", "pp4-fsdp2", "pp8", "pp4-fsdp2-tp2+sp", "pp4-fsdp2+mb2+ckpt"])
@pytest.mark.parametrize("batch", [256, 2048])
def test_closed_form_and_played_schedule_agree_on_1f1b(label: str, batch: int) -> None:
    asked = job(label, batch=batch)
    assert machine().refine(asked).time.seconds == pytest.approx(machine().estimate(asked).time.seconds, rel=0.01)


@pytest.mark.parametrize(
    "schedule", ["gpipe", "interleaved2", "interleaved5", "looped2", "zerobubble2", "zbv", "dualpipev"]
)
def test_closed_form_and_played_schedule_are_near_on_every_schedule(schedule: str) -> None:
    asked = job(f"pp4-fsdp2+{schedule}", batch=512)
    assert machine().refine(asked).time.seconds == pytest.approx(machine().estimate(asked).time.seconds, rel=0.02)


def test_a_played_schedule_of_many_micro_batches_is_continued_from_its_steady_state() -> None:
    from torchlayout.plan.time.pipeline import pipeline_of
    from torchlayout.plan.time.play import _makespan, _played

    asked = job("pp4-fsdp2", batch=1024)
    times = pipeline_of(machine().blocks, asked).times
    assert _makespan(asked, times, 0.0, 0.0) == pytest.approx(_played(asked, times, 512, 0.0, 0.0), rel=1e-9)


def test_a_bubble_is_what_the_other_stages_take_once() -> None:
    time = machine().estimate(job("pp4-fsdp2", batch=512)).time
    working = time.seconds - time.bubble - time.hops - time.shard - time.reduce - time.optimizer - time.fixed
    assert 2.5 / 256 < time.bubble / working < 3 / 256


def test_virtual_stages_divide_the_bubble_and_zero_bubble_schedules_almost_end_it() -> None:
    plain, interleaved, vee = (
        machine().estimate(job(f"pp4-fsdp2{choice}", batch=512)).time.bubble for choice in ("", "+interleaved2", "+zbv")
    )
    assert interleaved == pytest.approx(plain / 2, rel=0.05)
    assert vee < plain / 4


def test_sequence_parallelism_saves_element_wise_work() -> None:
    with_it, without = (machine().estimate(job(f"fsdp2-tp4{choice}")).time for choice in ("+sp", ""))
    assert with_it.elementwise < without.elementwise
    assert with_it.matmul == without.matmul


def test_waves_that_do_not_fill_the_multiprocessors_are_lost() -> None:
    kernels = Kernels(A100, Calibration(), "bf16")
    full = kernels.product(256 * 108, 128 * 4, 4096) / (256 * 108 * 128 * 4)
    spilled = kernels.product(256 * 108 + 256, 128 * 4, 4096) / ((256 * 108 + 256) * 128 * 4)
    assert spilled > 1.1 * full


def test_attention_that_keeps_scores_is_slower_the_longer_the_sequence() -> None:
    def ratio(sequence: int) -> float:
        unfused, flash = (
            machine().estimate(job("fsdp8", sequence=sequence, attention=kernel)).time.seconds
            for kernel in ("unfused", "flash2")
        )
        return unfused / flash

    assert 1 < ratio(1024) < ratio(2048) < ratio(8192)


def test_a_group_beyond_a_node_shares_the_adapters_of_its_devices() -> None:
    links = Links(A100, Calibration())
    inside, spread, alone = links.group(8, 1), links.group(64, 1), links.group(8, 8)
    assert (inside.nodes, spread.nodes, alone.nodes) == (1, 8, 8)
    assert links.bandwidth(inside) > links.bandwidth(spread) > links.bandwidth(alone)
    assert links.bandwidth(spread) == pytest.approx(8 * links.bandwidth(alone))


def test_groups_fill_nodes_in_order() -> None:
    assert Group.of(4, 1, 8) == Group(4, 4, 1)
    assert Group.of(16, 2, 8) == Group(16, 4, 4)
    assert Group.of(4, 8, 8) == Group(4, 1, 4)


def test_a_ring_hides_its_turns_and_ulysses_waits() -> None:
    ring, ulysses = (
        machine().estimate(job(f"fsdp2-cp4{choice}", sequence=32768)).time.context for choice in ("", "+ulysses")
    )
    assert 0 < ring < ulysses


def test_a_factor_beyond_a_node_costs_more_than_one_inside() -> None:
    inside, beyond = (machine().estimate(job(label)).time.tensor for label in ("fsdp2-tp8+sp", "fsdp1-tp20+sp"))
    assert beyond > 2 * inside


def test_an_unknown_profile_or_calibration_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r'software "nanotrn" is neither a profile nor .*; did you mean nanotron'):
        Software.load("nanotrn")
    with pytest.raises(InputError, match=r'calibration "h100" is neither shipped nor a .toml file; .*legal: priors'):
        Calibration.load("h100")
