from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlayout.layout import Layout
from torchlayout.schedule import Action, Timeline, actions, timeline


def equal_stages(action: Action) -> float:
    """A backward takes twice a forward; each of its halves as long as a forward."""
    return 2.0 if action.kind == "B" else 1.0


def run(label: str, micro_batches: int, hop_seconds: float = 0.0) -> Timeline:
    return timeline(actions(Layout.parse(label), micro_batches), equal_stages, hop_seconds)


@settings(deadline=None)
@given(pipeline=st.integers(2, 8), extra=st.integers(0, 12), schedule=st.sampled_from(["gpipe", "1f1b"]))
def test_the_bubble_of_1f1b_and_gpipe_is_p_less_1_over_m_plus_p_less_1(
    pipeline: int, extra: int, schedule: str
) -> None:
    micro_batches = pipeline + extra
    found = run(f"pp{pipeline}+{schedule}", micro_batches)
    assert found.makespan == 3 * (micro_batches + pipeline - 1)
    for rank in range(pipeline):
        assert found.bubble(rank) == pytest.approx((pipeline - 1) / (micro_batches + pipeline - 1), rel=1e-12)


@settings(deadline=None)
@given(pipeline=st.integers(2, 6), virtual=st.integers(2, 4), rounds=st.integers(1, 4))
def test_interleaving_divides_the_bubble_by_the_virtual_stages(pipeline: int, virtual: int, rounds: int) -> None:
    micro_batches = pipeline * rounds
    found = run(f"pp{pipeline}+interleaved{virtual}", micro_batches)
    expected = (pipeline - 1) / (virtual * micro_batches + pipeline - 1)
    for rank in range(pipeline):
        assert found.bubble(rank) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("pipeline", [2, 4, 8])
def test_zero_bubble_schedules_idle_less_than_interleaving(pipeline: int) -> None:
    interleaved = run(f"pp{pipeline}+interleaved2", 4 * pipeline).makespan
    for schedule in ("zerobubble2", "zbv", "dualpipev"):
        assert run(f"pp{pipeline}+{schedule}", 4 * pipeline).makespan < interleaved


@pytest.mark.parametrize("pipeline", [2, 3, 4, 8])
def test_zbv_idles_for_the_ramp_alone(pipeline: int) -> None:
    """With F = I = W a rank works without a gap from its first forward to its last weight gradient."""
    found = run(f"pp{pipeline}+zbv", 4 * pipeline)
    for events in found.ranks:
        busy = sum(event.end - event.start for event in events)
        assert events[-1].end - events[0].start == busy


@settings(deadline=None)
@given(pipeline=st.integers(2, 8), extra=st.integers(0, 8))
def test_1f1b_holds_as_many_micro_batches_as_ranks_follow_and_gpipe_all(pipeline: int, extra: int) -> None:
    micro_batches = pipeline + extra
    depth_first, fill_first = run(f"pp{pipeline}", micro_batches), run(f"pp{pipeline}+gpipe", micro_batches)
    for rank in range(pipeline):
        assert depth_first.in_flight(rank) == pipeline - rank
        assert fill_first.in_flight(rank) == micro_batches


def test_v_schedules_hold_as_much_on_every_rank() -> None:
    found = run("pp4+zbv", 16)
    assert {found.in_flight(rank) for rank in range(4)} == {8}


@settings(deadline=None)
@given(
    label=st.sampled_from(["pp2", "pp4+gpipe", "pp3+interleaved2", "pp3+zerobubble3", "pp3+zbv", "pp2+dualpipev"]),
    hop=st.floats(0, 5, allow_nan=False),
    scale=st.floats(0.1, 10),
)
def test_nothing_starts_before_what_it_needs_has_arrived(label: str, hop: float, scale: float) -> None:
    layout = Layout.parse(label)

    def seconds(action: Action) -> float:
        return scale * (1 + 0.1 * action.stage) * equal_stages(action)

    found = timeline(actions(layout, 6), seconds, hop)
    ends = {event.action: (event.rank, event.end) for event in found.events}
    for rank, action, start, end in found.events:
        assert end == start + seconds(action)
        kind, stage, micro_batch = action
        needed = []
        if kind == "F" and stage > 0:
            needed = [Action("F", stage - 1, micro_batch)]
        elif kind == "W":
            needed = [Action("I", stage, micro_batch)]
        elif kind in "IB":
            own = [Action("F", stage, micro_batch)]
            later = [Action(k, stage + 1, micro_batch) for k in ("I", "B")]  # type: ignore[arg-type]
            needed = own + [other for other in later if other in ends]
        for other in needed:
            from_rank, ended = ends[other]
            assert start >= ended + (hop if from_rank != rank else 0.0)
    for events in found.ranks:
        assert all(a.end <= b.start for a, b in pairwise(events))


def test_a_hop_delays_the_pipeline_and_not_one_rank_alone() -> None:
    assert run("pp4", 4, hop_seconds=1.0).makespan > run("pp4", 4).makespan
    assert run("fsdp4", 4, hop_seconds=1.0).makespan == run("fsdp4", 4).makespan
    # In a V the two middle stages are neighbours on one rank: 0 -> 1 and back are the only hops of pp2.
    one = run("pp2+zbv", 1, hop_seconds=1.0).makespan
    assert one - run("pp2+zbv", 1).makespan == 4.0


def test_busy_and_bubble_add_up_to_the_makespan() -> None:
    found = run("pp3+interleaved2", 6, hop_seconds=0.5)
    for rank in range(3):
        assert found.busy(rank) == 36.0
        assert found.bubble(rank) == pytest.approx(1 - 36.0 / found.makespan)


def test_ranks_that_wait_for_each_other_are_an_error_not_a_hang() -> None:
    wrong = [[Action("B", 0, 0), Action("F", 0, 0)], [Action("F", 1, 0), Action("B", 1, 0)]]
    with pytest.raises(ValueError, match="0B0, 1F0 wait for each other"):
        timeline(wrong, equal_stages)


def test_an_empty_schedule_takes_no_time() -> None:
    assert timeline([[], []], equal_stages).makespan == 0.0
    assert timeline([[], []], equal_stages).bubble(0) == 0.0
