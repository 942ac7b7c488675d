"""Transfers of gloo, named and charged by who asked for them and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.traces import Traced, row_of, shares_of, write_all
from torchlayout.trace.activity import Transfer
from torchlayout.trace.analyse import analyse, read_activity

GROUPS = [
    ("0", "default_pg", [0, 1, 2, 3]),
    ("1", "mesh_tp", [0, 1]),
    ("2", "mesh_fsdp", [0, 2]),
    ("3", "mesh_shard", [0, 1, 2, 3]),
    ("4", "mesh_pp", [0, 3]),
    ("5", "mesh_cp", [0, 2]),
    ("6", "mesh_dp", [0, 1]),
]


@pytest.fixture
def trace() -> Traced:
    """A rank of four with a step of 100 microseconds."""
    made = Traced(world=4, groups=GROUPS)
    made.mark("step", 0, 100, step=1)
    return made


def transfers(trace: Traced, folder: Path) -> list[Transfer]:
    return list(read_activity(trace.write(folder)).transfers)


def test_a_reduce_scatter_that_gloo_carries_out_as_an_all_reduce_is_a_reduce_scatter(
    trace: Traced, tmp_path: Path
) -> None:
    trace.add("user_annotation", "FSDP::post_backward_reduce", 5, 9)
    trace.gloo("_reduce_scatter_base", 10, 20, issued=6, carried_out="all_reduce", elements=50)
    (found,) = transfers(trace, tmp_path)
    assert (found.name, found.collective, found.axis) == ("gloo:all_reduce", "reduce_scatter", "fsdp")
    assert found.ranks == (0, 1, 2, 3)
    assert found.bytes == 200


def test_an_all_reduce_inside_fsdp_is_of_its_replicas(trace: Traced, tmp_path: Path) -> None:
    trace.add("user_annotation", "FSDP::post_backward_reduce", 5, 9)
    trace.gloo("allreduce", 10, 20, issued=6)
    (found,) = transfers(trace, tmp_path)
    assert (found.collective, found.axis, found.ranks) == ("all_reduce", "dp", (0, 1))


def test_two_groups_at_once_are_told_apart_by_what_was_asked_and_how_much(trace: Traced, tmp_path: Path) -> None:
    """Both are all-reduces to gloo and end in the other order than they were asked in."""
    trace.add("user_annotation", "FSDP::post_backward_reduce", 5, 8)
    trace.gloo("_reduce_scatter_base", 12, 40, issued=6, carried_out="all_reduce", elements=64)
    trace.op("_c10d_functional::all_reduce", 8, 11)
    trace.gloo("allreduce", 11, 20, issued=9, elements=16)
    found = {(one.collective, one.axis): one for one in transfers(trace, tmp_path)}
    assert found.keys() == {("reduce_scatter", "fsdp"), ("all_reduce", "tp")}
    assert found["reduce_scatter", "fsdp"].bytes == 256
    assert found["all_reduce", "tp"].ranks == (0, 1)


def test_messages_inside_a_forward_or_a_backward_are_the_rings(trace: Traced, tmp_path: Path) -> None:
    trace.mark("forward", 0, 30, stage=0, micro_batch=0)
    trace.mark("backward", 30, 60, stage=0, micro_batch=0)
    trace.gloo("send", 10, 20, peer=1)
    trace.gloo("recv_", 40, 50, peer=1)
    assert [(one.collective, one.axis, one.peer) for one in transfers(trace, tmp_path)] == [
        ("send", "cp", 2),
        ("recv", "cp", 2),
    ]


def test_messages_between_micro_batches_are_the_pipelines(trace: Traced, tmp_path: Path) -> None:
    trace.mark("forward", 0, 30, stage=0, micro_batch=0)
    trace.gloo("send", 31, 40, peer=1)
    (found,) = transfers(trace, tmp_path)
    assert (found.axis, found.peer, found.ranks) == ("pp", 3, (0, 3))


@pytest.mark.parametrize(("phase", "axis"), [("exchange", "world"), ("clip", "world"), ("reduce", "pp")])
def test_a_collective_of_a_phase_is_charged_by_it(trace: Traced, phase: str, axis: str, tmp_path: Path) -> None:
    trace.mark(phase, 10, 30)  # type: ignore[arg-type]
    trace.gloo("allreduce", 15, 25)
    (found,) = transfers(trace, tmp_path)
    assert found.axis == axis


def test_a_transfer_that_nobody_asked_for_is_charged_to_no_axis(trace: Traced, tmp_path: Path) -> None:
    trace.add("user_annotation", "gloo:broadcast", 10, 20, 99)
    (found,) = transfers(trace, tmp_path)
    assert (found.collective, found.axis, found.ranks, found.bytes) == ("broadcast", "other", (), 0)


def test_an_operator_asks_for_one_transfer(trace: Traced, tmp_path: Path) -> None:
    trace.mark("exchange", 0, 50)
    trace.gloo("allreduce", 15, 20)
    trace.add("user_annotation", "gloo:all_reduce", 20, 25, 99)
    assert [one.axis for one in transfers(trace, tmp_path)] == ["world", "other"]


def test_only_operators_of_the_loops_thread_ask(trace: Traced, tmp_path: Path) -> None:
    """The checkpoint's thread talks over groups of its own."""
    trace.add("cpu_op", "c10d::allreduce_", 5, 6, 55)
    trace.add("user_annotation", "gloo:all_reduce", 10, 20, 99)
    assert [one.axis for one in transfers(trace, tmp_path)] == ["other"]


def test_computation_is_what_operators_do_and_not_what_they_wait_for(trace: Traced, tmp_path: Path) -> None:
    """An operator of a tensor subclass holds a collective; only what computes inside it counts."""
    trace.op("aten::linear", 0, 60)
    trace.op("_c10d_functional::wait_tensor", 10, 40)
    trace.gloo("allreduce", 12, 38, issued=11)
    trace.op("aten::mm", 40, 60)
    trace.op("aten::silu", 60, 80)
    trace.op("aten::mul", 65, 70)
    document = analyse(write_all(tmp_path, [trace])).document
    assert shares_of(document) == {
        "compute/gemm": 20,
        "compute/elementwise": 20,
        "communication/tp": 26,
        "idle": 34,
    }
    assert row_of(document)["overlap"] == 0
    counted = {row["name"]: (row["class"], row["count"]) for row in document["kernels"]}
    assert counted["aten::mm"] == ("gemm", 1)
    assert not any("c10d" in name for name in counted)


def test_a_backward_on_the_engines_thread_is_not_the_loops(trace: Traced, tmp_path: Path) -> None:
    """On CPU autograd runs in the thread that called it; what other threads compute is not its step."""
    trace.add("cpu_op", "aten::mm", 0, 50, 55)
    assert shares_of(analyse(write_all(tmp_path, [trace])).document) == {"idle": 100}


def test_a_functional_all_reduce_inside_a_hook_of_fsdp_is_tensor_parallelisms(trace: Traced, tmp_path: Path) -> None:
    """The gradient of a norm is reduced over tp when FSDP asks for it."""
    trace.add("user_annotation", "FSDP::post_backward_reduce", 5, 15)
    trace.op("_c10d_functional::all_reduce", 6, 9)
    trace.gloo("allreduce", 8, 14, issued=7)
    (found,) = transfers(trace, tmp_path)
    assert found.axis == "tp"


def test_an_all_reduce_inside_a_forward_is_the_losss_over_a_sharded_vocabulary(trace: Traced, tmp_path: Path) -> None:
    trace.mark("forward", 0, 30, stage=0, micro_batch=0)
    trace.gloo("allreduce", 10, 20)
    (found,) = transfers(trace, tmp_path)
    assert found.axis == "tp"


def test_nothing_is_charged_to_an_axis_of_one_rank(tmp_path: Path) -> None:
    """Where tp takes up the world it has no group of its own: the layout says so."""
    alone = [("0", "default_pg", [0, 1]), ("1", "mesh_dp", [0]), ("2", "mesh_shard", [0]), ("3", "mesh_cp", [0])]
    trace = Traced(world=2, groups=alone, header={"torchlayout": {"layout": "tp2+sp"}})
    trace.mark("step", 0, 100, step=1)
    trace.mark("forward", 0, 30, stage=0, micro_batch=0)
    trace.op("_c10d_functional::all_gather_into_tensor", 5, 9)
    trace.gloo("allgather_into_tensor_coalesced", 6, 12, issued=6)
    trace.gloo("allreduce", 20, 25)
    trace.add("user_annotation", "FSDP::post_backward_reduce", 40, 50)
    trace.op("_c10d_functional::all_reduce", 41, 44)
    trace.gloo("allreduce", 43, 48, issued=42)
    assert [(one.axis, one.ranks) for one in transfers(trace, tmp_path)] == [("tp", (0, 1))] * 3


def test_a_message_ends_once_it_has_arrived_not_when_somebody_asks(tmp_path: Path) -> None:
    """Zero-bubble schedules ask for all sends at the end of a step."""
    sender, receiver = (
        Traced(rank=rank, world=2, groups=[("1", "mesh_pp", [0, 1])], header={"torchlayout": {"layout": "pp2"}})
        for rank in (0, 1)
    )
    for trace in (sender, receiver):
        trace.mark("step", 0, 100, step=1)
    sender.gloo("send", 10, 95, peer=1)
    receiver.gloo("recv_", 5, 14, peer=0)
    document = analyse(write_all(tmp_path, [sender, receiver])).document
    assert shares_of(document, rank=0) == {"communication/pp": 4, "idle": 96}


def test_bytes_are_those_of_what_is_carried(trace: Traced, tmp_path: Path) -> None:
    trace.mark("forward", 0, 30, stage=0, micro_batch=0)
    trace.gloo("send", 10, 20, peer=1, elements=8)
    trace.events[-1]["args"]["Input type"] = ["c10::BFloat16"]
    (found,) = transfers(trace, tmp_path)
    assert found.bytes == 16


@pytest.mark.parametrize(("axis", "group"), [("pp", [0, 1]), ("cp", [0, 1])])
def test_messages_of_an_evaluation_are_the_pipelines_or_the_rings(axis: str, group: list[int], tmp_path: Path) -> None:
    groups = [(axis, f"mesh_{axis}", group)] + [
        (other, f"mesh_{other}", [0]) for other in ("pp", "cp") if other != axis
    ]
    trace = Traced(world=4, groups=groups)
    trace.mark("step", 0, 100, step=1)
    trace.mark("evaluation", 10, 60)
    trace.gloo("send", 20, 30, peer=1)
    (found,) = transfers(trace, tmp_path)
    assert (found.axis, found.peer) == (axis, 1)


@pytest.mark.parametrize("dims", [[5], ["abc"], [[10**300]], [[float("nan")]], [[1e308, 1e308]], 7, None])
def test_odd_shapes_cost_the_bytes_and_no_more(trace: Traced, tmp_path: Path, dims: object) -> None:
    trace.gloo("allreduce", 10, 20)
    for event in trace.events[-2:]:
        event["args"]["Input Dims"] = dims
    document = analyse(trace.write(tmp_path)).document
    (row,) = document["collectives"]
    assert (row["count"], row["bytes"]) == (1, 0)
