"""Every schedule against torch's own: what a torch schedule executes on stages that do nothing but take notes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.pipelining.stage import PipelineStage

from torchlayout.errors import InputError
from torchlayout.layout import Layout, words
from torchlayout.layout.rules import accepts
from torchlayout.schedule import Action, actions, timeline

TORCH = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "looped": "LoopedBFS",
    "zerobubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
CASES = [
    (schedule, pipeline, virtual)
    for schedule in TORCH
    for pipeline in (2, 3, 4, 5)
    for virtual in ((2, 3) if schedule in words.LOOPED_SCHEDULES else (2 if schedule in words.V_SCHEDULES else 1,))
]


def mocked_stage(index: int, ranks: int, stages: int) -> Any:
    stage = mock.MagicMock(spec=PipelineStage)
    stage.stage_index, stage.group_rank, stage.group_size = index, 0, ranks
    stage.num_stages, stage.submod, stage.is_last = stages, None, index == stages - 1
    for communicates in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, communicates).return_value = []
    return stage


def executed_by_single_stage_schedule(layout: Layout, rank: int, micro_batches: int) -> list[Action]:
    """Run torch's step on a noting stage: the drawing that torch keeps of 1F1B is wrong on the last rank."""
    stage, notes = mocked_stage(rank, layout.pipeline, layout.stages), []
    stage.forward_one_chunk.side_effect = lambda m, *_, **__: notes.append(Action("F", rank, m))
    stage.backward_one_chunk.side_effect = lambda m, **_: notes.append(Action("B", rank, m))
    schedule = get_schedule_class(TORCH[layout.schedule])(stage, micro_batches)
    with mock.patch.object(schedule, "_initialize_stage"):
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
    return notes


def lowered_by_multi_stage_schedule(layout: Layout, micro_batches: int) -> list[list[Action]]:
    """The list that torch's runtime walks through, without its communication; overlapped pairs run in order."""
    stages = [mocked_stage(0, layout.pipeline, layout.stages) for _ in range(layout.virtual_stages)]
    schedule: Any = get_schedule_class(TORCH[layout.schedule])(stages, micro_batches)
    orders = []
    for rank in range(layout.pipeline):
        lowered = schedule.pipeline_order_with_comms[rank]
        steps = [step for action in lowered for step in (action.sub_actions or (action,))]
        orders.append(
            [
                Action(step.computation_type.value, step.stage_index, step.microbatch_index)
                for step in steps
                if step.computation_type.value in ("F", "I", "W", "B")
            ]
        )
    return orders


def torch_orders(layout: Layout, micro_batches: int) -> list[list[Action]]:
    if layout.virtual_stages > 1:
        return lowered_by_multi_stage_schedule(layout, micro_batches)
    ranks = range(layout.pipeline)
    return [executed_by_single_stage_schedule(layout, rank, micro_batches) for rank in ranks]


@pytest.mark.parametrize(("schedule", "pipeline", "virtual"), CASES)
def test_every_schedule_does_what_torch_executes(schedule: str, pipeline: int, virtual: int) -> None:
    layout = Layout(pipeline=pipeline, schedule=schedule, virtual_stages=virtual)
    for micro_batches in (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15):
        if accepts(layout, micro_batches):
            ours = [list(order) for order in actions(layout, micro_batches)]
            assert ours == torch_orders(layout, micro_batches), micro_batches
        else:
            # Torch refuses as well: what we take away is nothing that would work.
            with pytest.raises(ValueError, match=r"micro-?batch|chunks"):
                torch_orders(layout, micro_batches)
            with pytest.raises(InputError, match="nearest legal numbers of micro-batches"):
                actions(layout, micro_batches)


@st.composite
def runnable(draw: st.DrawFn) -> tuple[Layout, int]:
    schedule, pipeline = draw(st.sampled_from(sorted(TORCH))), draw(st.integers(2, 7))
    virtual = draw(st.integers(2, 4)) if schedule in words.LOOPED_SCHEDULES else 1
    layout = Layout(pipeline=pipeline, schedule=schedule, virtual_stages=virtual)
    return layout, draw(st.integers(1, 24).filter(lambda count: accepts(layout, count)))


@settings(deadline=None)
@given(runnable())
def test_every_stage_does_every_micro_batch_forward_and_backward_once(case: tuple[Layout, int]) -> None:
    layout, micro_batches = case
    for rank, order in enumerate(actions(layout, micro_batches)):
        everything = {(stage, m) for stage in layout.stages_of(rank) for m in range(micro_batches)}
        for kinds in ("F", "BI", "BW"):
            done = [(action.stage, action.micro_batch) for action in order if action.kind in kinds]
            assert len(done) == len(set(done))
            assert set(done) == everything


@settings(deadline=None)
@given(runnable())
def test_no_schedule_waits_forever(case: tuple[Layout, int]) -> None:
    layout, micro_batches = case
    orders = actions(layout, micro_batches)
    assert len(timeline(orders, lambda _: 1.0, 0.25).events) == sum(len(order) for order in orders)


def test_without_a_pipeline_the_one_rank_alternates_forward_and_backward() -> None:
    (order,) = actions(Layout(shard=4), 3)
    assert [str(action) for action in order] == ["0F0", "0B0", "0F1", "0B1", "0F2", "0B2"]


@pytest.mark.parametrize("schedule", ["zerobubble", "zbv", "dualpipev"])
def test_only_zero_bubble_schedules_split_the_backward(schedule: str) -> None:
    assert schedule in words.ZERO_BUBBLE_SCHEDULES
    virtual = 2 if schedule == "zerobubble" else 1
    layout = Layout(pipeline=2, schedule=schedule, virtual_stages=virtual)
    assert any(action.kind == "W" for order in actions(layout, 8) for action in order)
    others = set(TORCH) - set(words.ZERO_BUBBLE_SCHEDULES)
    for other in others:
        virtual = 2 if other in words.LOOPED_SCHEDULES else 1
        layout = Layout(pipeline=2, schedule=other, virtual_stages=virtual)
        assert {action.kind for order in actions(layout, 8) for action in order} == {"F", "B"}
