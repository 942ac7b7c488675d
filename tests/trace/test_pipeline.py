"""Bubbles: known to the microsecond in hand-made pipelines, and equal to the schedule's own in played ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.traces import Traced, device_pipeline, host_pipeline, pipeline_group, row_of, shares_of, write_all
from torchlayout.layout import Layout
from torchlayout.schedule import Action, Timeline, actions, timeline
from torchlayout.trace.activity import Work
from torchlayout.trace.analyse import analyse
from torchlayout.trace.pipeline import schedule_bubble

Phases = list[tuple[str, int, int, int]]
"""(phase, micro-batch, start, end)"""

# 1F1B of two stages and two micro-batches: a forward takes 10, a backward 20, a message 2.
FIRST: Phases = [("forward", 0, 0, 10), ("forward", 1, 10, 20), ("backward", 0, 44, 64), ("backward", 1, 76, 96)]
SECOND: Phases = [("forward", 0, 12, 22), ("backward", 0, 22, 42), ("forward", 1, 42, 52), ("backward", 1, 54, 74)]
MADE: list[Phases] = [FIRST, SECOND]


def on_hosts(works: list[Phases], end: int) -> list[Traced]:
    """Ranks on gloo: their hosts wait where nothing is computed, and that is in no event."""
    traces = []
    for rank, work in enumerate(works):
        trace = Traced(rank, len(works), groups=pipeline_group(len(works)))
        trace.mark("step", 0, end, step=1)
        for phase, micro_batch, start, stop in work:
            trace.mark(phase, start, stop, stage=rank, micro_batch=micro_batch)  # type: ignore[arg-type]
            trace.op("aten::mm", start, stop)
        traces.append(trace)
    return traces


def on_devices(works: list[Phases], end: int) -> list[Traced]:
    """The same on devices: all launched in the first microsecond, and receive kernels spin in between."""
    traces = []
    for rank, work in enumerate(works):
        trace = Traced(rank, len(works), groups=pipeline_group(len(works)), device_name="NVIDIA H100")
        trace.mark("step", 0, end, step=1)
        reached = 0
        for number, (phase, micro_batch, start, stop) in enumerate(work):
            launched = number / 10
            if start > reached:
                trace.nccl("recv", reached, start, "1", launched=launched, **{"Src Rank": 1 - rank})
            trace.mark(phase, launched, launched + 0.1, stage=rank, micro_batch=micro_batch)  # type: ignore[arg-type]
            trace.kernel("nvjet_tst_128x256_64x4_NNT", start, stop, launched + 0.05)
            reached = stop
        traces.append(trace)
    return traces


BUILDERS = [on_hosts, on_devices]
Builder = Callable[[list[Phases], int], list[Traced]]


@pytest.mark.parametrize("build", BUILDERS)
def test_bubbles_of_a_pipeline_made_by_hand_are_known_exactly(build: Builder, tmp_path: Path) -> None:
    """A rank waits for the end of its neighbour's computation; the 2 of a message are transfer, or idle on gloo."""
    document = analyse(write_all(tmp_path, build(MADE, 100))).document
    moved = "communication/pp" if build is on_devices else "idle"
    # Rank 0 waits from 20 for the backward that ends at 42, from 64 for that which ends at 74.
    first = {"compute/gemm": 60, "bubble/drain": 22 + 10, "idle": 4} | {moved: 4 if moved != "idle" else 8}
    assert shares_of(document, 0) == first
    # Rank 1 waits to 10 for the first forward; from 52 its backward needs nothing of others; from 74 rank 0 goes on.
    idle = {"communication/pp": 4, "idle": 4} if build is on_devices else {"idle": 8}
    assert shares_of(document, 1) == {"compute/gemm": 60, "bubble/warmup": 10, "bubble/drain": 22} | idle
    assert document["pipeline"]["by_rank"] == pytest.approx({"0": 32 / 96, "1": 32 / 96})
    assert document["pipeline"]["bubble"] == pytest.approx(32 / 96)
    # Without messages the schedule itself takes (2 + 1) * 30, of which 30 are bubble.
    assert document["pipeline"]["schedule"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("build", BUILDERS)
def test_waiting_for_a_forward_after_a_backward_is_steady(build: Builder, tmp_path: Path) -> None:
    slow: Phases = [("forward", 0, 0, 10), ("forward", 1, 10, 50), ("backward", 0, 50, 60), ("backward", 1, 70, 80)]
    quick: Phases = [("forward", 0, 10, 20), ("backward", 0, 20, 30), ("forward", 1, 50, 60), ("backward", 1, 60, 70)]
    document = analyse(write_all(tmp_path, build([slow, quick], 80))).document
    assert shares_of(document, 0) == {"compute/gemm": 70, "bubble/drain": 10}
    assert shares_of(document, 1) == {
        "compute/gemm": 40,
        "bubble/warmup": 10,
        "bubble/steady": 20,
        "bubble/drain": 10,
    }


@pytest.mark.parametrize("build", BUILDERS)
def test_the_weights_half_of_a_backward_waits_for_nobody(build: Builder, tmp_path: Path) -> None:
    first: Phases = [("forward", 0, 0, 10), ("backward", 0, 30, 40), ("weight", 0, 45, 55)]
    second: Phases = [("forward", 0, 10, 20), ("backward", 0, 20, 30), ("weight", 0, 30, 40)]
    document = analyse(write_all(tmp_path, build([first, second], 60))).document
    unexplained = {"communication/pp": 5, "idle": 5} if build is on_devices else {"idle": 10}
    assert shares_of(document, 0) == {"compute/gemm": 30, "bubble/drain": 20} | unexplained
    assert shares_of(document, 1) == {"compute/gemm": 30, "bubble/warmup": 10, "bubble/drain": 15, "idle": 5}
    stages = {row["stage"]: row for row in document["stages"]}
    assert stages[0]["weight_seconds"] == pytest.approx(10e-6)
    assert document["pipeline"]["schedule"] == pytest.approx((25 / 55 + 25 / 55) / 2, abs=0.1)


@pytest.mark.parametrize("build", BUILDERS)
def test_without_a_neighbours_trace_waiting_for_it_stays_what_it_looks_like(build: Builder, tmp_path: Path) -> None:
    """Only that the other has sent ends a bubble; nobody says when, so a receipt stays a receipt."""
    _, second = build(MADE, 100)
    document = analyse(write_all(tmp_path, [second])).document
    waited = {"communication/pp": 14, "idle": 26} if build is on_devices else {"idle": 40}
    assert shares_of(document, 1) == {"compute/gemm": 60} | waited
    assert document["pipeline"] == {"bubble": None, "schedule": None, "by_rank": {}}
    assert any("its bubble is not measured" in note for note in document["notes"])


def test_idle_time_before_the_pipeline_starts_is_no_part_of_its_makespan(tmp_path: Path) -> None:
    """Rank 0 waits 100 for data, so rank 1 waits as well; the pipeline itself is as before."""
    later = [[(phase, number, start + 100, end + 100) for phase, number, start, end in work] for work in MADE]
    traces = on_hosts(later, 200)
    traces[0].mark("data", 0, 100)
    document = analyse(write_all(tmp_path, traces)).document
    assert shares_of(document, 0)["data"] == 100
    assert shares_of(document, 1)["bubble/warmup"] == 110
    assert document["pipeline"]["by_rank"] == pytest.approx({"0": 32 / 96, "1": 32 / 96})


def test_what_comes_after_the_pipeline_is_no_bubble(tmp_path: Path) -> None:
    traces = on_hosts(MADE, 150)
    traces[1].op("aten::add", 130, 150)
    document = analyse(write_all(tmp_path, traces)).document
    assert shares_of(document, 1)["bubble/drain"] == 22
    assert shares_of(document, 1)["idle"] == 8 + (130 - 100)


def equal(action: Action) -> float:
    return 2.0 if action.kind == "B" else 1.0


SCHEDULES = ["pp2+gpipe", "pp4+gpipe", "pp4+1f1b", "pp2+interleaved2", "pp4+interleaved2", "pp2+zerobubble2", "pp2+zbv"]
SCHEDULES += ["pp4+zbv", "pp4+zerobubble2", "pp2+looped2", "pp4+dualpipev"]


def played(label: str) -> Timeline:
    return timeline(actions(Layout.parse(label), 8), equal)


@pytest.mark.parametrize("label", SCHEDULES)
@pytest.mark.parametrize("build", [host_pipeline, device_pipeline])
def test_a_played_schedule_has_the_bubble_that_it_was_played_with(label: str, build: Any, tmp_path: Path) -> None:
    made = played(label)
    document = analyse(write_all(tmp_path, build(made.ranks, made.makespan))).document
    own = [made.bubble(rank) for rank in range(len(made.ranks))]
    assert document["pipeline"]["schedule"] == pytest.approx(sum(own) / len(own), abs=1e-3)
    assert [document["pipeline"]["by_rank"][str(rank)] for rank in range(len(own))] == pytest.approx(own, abs=1e-3)
    for rank in range(len(own)):
        assert sum(row_of(document, rank)["shares"].values()) == pytest.approx(row_of(document, rank)["seconds"])


@pytest.mark.parametrize("label", SCHEDULES)
def test_the_schedules_own_bubble_is_that_of_its_timeline(label: str) -> None:
    made = played(label)
    phases = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}
    works = {
        rank: [
            Work(phases[one.action.kind], one.action.stage, one.action.micro_batch, int(one.start), int(one.end))  # type: ignore[arg-type]
            for one in events
        ]
        for rank, events in enumerate(made.ranks)
    }
    own = [made.bubble(rank) for rank in works]
    assert schedule_bubble(works) == pytest.approx(sum(own) / len(own))


def test_half_a_schedule_has_no_bubble_of_its_own() -> None:
    made = Work("forward", 1, 0, 0, 1)
    assert schedule_bubble({0: [made], 1: [Work("forward", 2, 0, 1, 2)]}) is None
    assert schedule_bubble({0: [made]}) is None
