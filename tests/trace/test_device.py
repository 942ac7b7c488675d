"""Ranks whose devices compute: axes, attribution by launch, exposed and hidden communication, bandwidth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.traces import Traced, row_of, shares_of, write_all
from torchlayout.trace.activity import Transfer, Work
from torchlayout.trace.analyse import analyse, read_activity
from torchlayout.trace.breakdown import Known


def traced(groups: list[tuple[str, str, list[int]]] | None = None, **keywords: Any) -> Traced:
    """A rank with one step of 100 microseconds."""
    trace = Traced(groups=groups or [], **keywords)
    trace.mark("step", 0, 100, step=1)
    return trace


def transfers(trace: Traced, folder: Path) -> tuple[Transfer, ...]:
    return read_activity(trace.write(folder)).transfers


@pytest.mark.parametrize(
    ("description", "axis"),
    [("mesh_tp", "tp"), ("mesh_shard", "fsdp"), ("mesh_pp", "pp"), ("mesh_cp", "cp"), ("mesh_dp", "dp")],
)
def test_a_collective_runs_along_the_axis_of_its_group(description: str, axis: str, tmp_path: Path) -> None:
    trace = traced([("5", description, [0, 4])])
    trace.nccl("allreduce", 10, 20, "5", elements=1000)
    (transfer,) = transfers(trace, tmp_path)
    assert (transfer.collective, transfer.axis, transfer.ranks) == ("all_reduce", axis, (0, 4))
    assert transfer.bytes == 2000


@pytest.mark.parametrize("missing", [None, "", "undefined"])
def test_a_kernel_without_a_description_is_charged_by_the_name_of_its_group(missing: Any, tmp_path: Path) -> None:
    trace = traced([("5", "mesh_tp", [0, 1])])
    trace.nccl("allreduce", 10, 20, "5", **{"Process Group Description": missing})
    (transfer,) = transfers(trace, tmp_path)
    assert transfer.axis == "tp"


def test_a_group_that_only_the_kernel_describes_is_known_by_that(tmp_path: Path) -> None:
    trace = traced([("5", "mesh_tp", [0, 1])])
    trace.nccl("allreduce", 10, 20, "5")
    trace.groups = []
    (transfer,) = transfers(trace, tmp_path)
    assert (transfer.axis, transfer.ranks) == ("tp", (0, 1))


def test_ranks_that_the_kernel_shortens_are_taken_from_the_header(tmp_path: Path) -> None:
    trace = traced([("5", "mesh_shard", list(range(256)))])
    trace.nccl("_allgather_base", 10, 20, "5", **{"Process Group Ranks": "[0, 1, 2, ..., 254, 255]"})
    assert transfers(trace, tmp_path)[0].ranks == tuple(range(256))
    trace.groups = []
    assert transfers(trace, tmp_path)[0].ranks == ()


def test_a_message_that_says_nothing_is_of_the_pipeline_where_stages_are_marked(tmp_path: Path) -> None:
    trace = traced()
    trace.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 10, 20)
    assert transfers(trace, tmp_path)[0].axis == "other"
    trace.mark("forward", 0, 10, stage=1, micro_batch=0)
    assert transfers(trace, tmp_path)[0].axis == "pp"


def test_what_ranks_tell_each_other_is_of_the_world_whatever_its_group(tmp_path: Path) -> None:
    trace = traced([("5", "mesh_dp", [0, 1])])
    trace.mark("exchange", 50, 60)
    trace.nccl("allreduce", 70, 80, "5", launched=52)
    trace.nccl("allreduce", 80, 90, "5", launched=65)
    assert [transfer.axis for transfer in transfers(trace, tmp_path)] == ["world", "dp"]


def test_kernels_are_the_optimizers_when_it_launched_them(tmp_path: Path) -> None:
    """The device runs long after the host: what counts is when a kernel was launched."""
    trace = traced()
    trace.mark("backward", 0, 10, stage=0, micro_batch=0)
    trace.mark("optimizer", 10, 20)
    trace.kernel("multi_tensor_apply_kernel", 40, 50, launched=9)
    trace.kernel("multi_tensor_apply_kernel", 50, 75, launched=12)
    trace.kernel("ampere_sgemm_32x32", 75, 80, launched=15)
    trace.kernel("ampere_sgemm_32x32", 20, 30)
    assert shares_of(analyse(write_all(tmp_path, [trace])).document) == {
        "compute/gemm": 10,
        "compute/elementwise": 10,
        "optimizer": 30,
        "idle": 50,
    }


def test_a_micro_batch_is_worked_on_from_its_first_kernel_to_its_last(tmp_path: Path) -> None:
    trace = traced()
    trace.mark("forward", 0, 3, stage=1, micro_batch=0)
    trace.mark("forward", 3, 6, stage=1, micro_batch=1)
    trace.mark("backward", 6, 9, stage=1, micro_batch=0)
    trace.mark("weight", 9, 12, stage=1, micro_batch=0)
    for launched, start, end in ((1, 20, 25), (2, 26, 30), (4, 30, 40), (7, 40, 55), (10, 60, 70)):
        trace.kernel("ampere_sgemm_32x32", start, end, launched)
    base = 1_700_000_000_000_000_000
    spans = [(work.phase, work.micro_batch, work.start - base, work.end - base) for work in work_of(trace, tmp_path)]
    assert spans == [
        ("forward", 0, 20_000, 30_000),
        ("forward", 1, 30_000, 40_000),
        ("backward", 0, 40_000, 55_000),
        ("weight", 0, 60_000, 70_000),
    ]
    (row,) = analyse(write_all(tmp_path, [trace])).document["stages"]
    assert row == {
        "stage": 1,
        "rank": 0,
        "forward_seconds": pytest.approx(10e-6),
        "backward_seconds": pytest.approx(15e-6),
        "weight_seconds": pytest.approx(10e-6),
        "micro_batches": 2,
    }


def work_of(trace: Traced, folder: Path) -> tuple[Work, ...]:
    return read_activity(trace.write(folder)).work


def test_hidden_and_exposed_communication_are_exact(tmp_path: Path) -> None:
    """Compute 10-50 and 70-90; an all-gather 0-30, a reduce-scatter 40-80, an all-reduce 75-95."""
    trace = traced([("1", "mesh_shard", [0, 1]), ("2", "mesh_dp", [0, 2])])
    trace.kernel("ampere_sgemm_32x32", 10, 50)
    trace.kernel("ampere_sgemm_32x32", 70, 90)
    trace.nccl("_allgather_base", 0, 30, "1", elements=100, stream=20)
    trace.nccl("_reduce_scatter_base", 40, 80, "1", elements=100, stream=21)
    trace.nccl("allreduce", 75, 95, "2", elements=100, stream=22)
    document = analyse(write_all(tmp_path, [trace])).document
    assert shares_of(document) == {"compute/gemm": 60, "communication/fsdp": 30, "communication/dp": 5, "idle": 5}
    row = row_of(document)
    assert row["hidden"] == pytest.approx({"communication/fsdp": 40e-6, "communication/dp": 15e-6})
    assert row["overlap"] == pytest.approx(55 / 90)
    assert row["collectives"] == pytest.approx({"all_gather": 10e-6, "reduce_scatter": 20e-6, "all_reduce": 5e-6})
    assert row["waiting"] == {}
    exposed = {one["collective"]: round(one["exposed_seconds"] * 1e6, 3) for one in document["collectives"]}
    assert exposed == {"all_gather": 10, "reduce_scatter": 20, "all_reduce": 5}


def late(folder: Path) -> dict[str, Any]:
    """Two ranks meet twice in an all-reduce of 1 MB that takes 20 us; the first time rank 1 comes 30 us later."""
    traces = []
    for rank, first in ((0, 10), (1, 40)):
        trace = traced([("1", "mesh_dp", [0, 1])], rank=rank, world=2)
        trace.kernel("ampere_sgemm_32x32", 0, first)
        trace.nccl("allreduce", first, 60, "1", elements=500_000)
        trace.nccl("allreduce", 70, 90, "1", elements=500_000)
        traces.append(trace)
    return analyse(write_all(folder, traces)).document


def test_waiting_is_what_comes_before_the_last_rank(tmp_path: Path) -> None:
    document = late(tmp_path)
    assert row_of(document, 0)["waiting"] == pytest.approx({"communication/dp": 30e-6})
    assert row_of(document, 1)["waiting"] == {}


def test_bandwidth_counts_from_when_the_last_rank_came(tmp_path: Path) -> None:
    (row,) = late(tmp_path)["collectives"]
    assert (row["count"], row["bytes"], row["group_size"]) == (2, 2e6, 2)
    assert row["seconds"] == pytest.approx((50 + 20 + 20 + 20) * 1e-6 / 2)
    # An all-reduce of two ranks sends each byte once: 2 (n - 1) / n = 1.
    assert row["bus_bytes_per_second"] == pytest.approx(1e6 / 20e-6)


def test_ranks_meet_in_what_their_hosts_started_in_the_same_step(tmp_path: Path) -> None:
    """Rank 1's device is behind by more: the first step's all-reduce begins, and only there, in the second step."""
    traces = []
    for rank, runs in ((0, [(80, 110), (120, 150)]), (1, [(102, 110), (122, 150)])):
        trace = traced([("1", "mesh_dp", [0, 1])], rank=rank, world=2)
        trace.mark("step", 100, 200, step=2)
        trace.nccl("allreduce", -20, -10 if rank else 5, "1", launched=-30)
        for launched, (start, end) in zip((10, 105), runs, strict=True):
            trace.nccl("allreduce", start, end, "1", elements=10, launched=launched)
        traces.append(trace)
    document = analyse(write_all(tmp_path, traces)).document
    waits = [[row_of(document, rank, step)["waiting"] for step in (0, 1)] for rank in (0, 1)]
    assert waits[0] == [pytest.approx({"communication/dp": 20e-6}), pytest.approx({"communication/dp": 4e-6})]
    assert waits[1] == [{}, {}]


def test_a_transfer_across_two_steps_counts_once_and_is_exposed_in_both(tmp_path: Path) -> None:
    trace = traced([("1", "mesh_dp", [0, 1])])
    trace.mark("step", 100, 200, step=2)
    trace.nccl("allreduce", 90, 120, "1", elements=100)
    document = analyse(write_all(tmp_path, [trace])).document
    (row,) = document["collectives"]
    assert row["count"] * 2 == 1
    assert row["seconds"] * 2 == pytest.approx(30e-6)
    assert row["exposed_seconds"] * 2 == pytest.approx(30e-6)
    assert [shares_of(document, step=place)["communication/dp"] for place in (0, 1)] == [10, 20]


def test_achieved_flops_are_those_of_a_rank_in_the_time_it_computes(tmp_path: Path) -> None:
    trace = traced(world=4)
    trace.kernel("ampere_sgemm_32x32", 0, 50)
    document = analyse(write_all(tmp_path, [trace]), Known(flops_per_step=4e9)).document
    assert row_of(document)["flops_per_second"] == pytest.approx(1e9 / 50e-6)


def test_loops_of_others_are_told_by_the_ranges_of_torch(tmp_path: Path) -> None:
    trace = Traced()
    trace.add("user_annotation", "ProfilerStep#7", 0, 100)
    trace.add("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 10)
    trace.add("user_annotation", "Optimizer.step#AdamW.step", 50, 60)
    trace.kernel("elementwise_kernel", 70, 80, launched=55)
    document = analyse(write_all(tmp_path, [trace])).document
    assert document["steps"][0]["step"] == 7
    assert shares_of(document) == {"optimizer": 10, "data": 10, "idle": 80}
