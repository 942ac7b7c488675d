"""Traces of other people: CUDA with and without group information, and ROCm."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from harness.traces import real
from torchlayout.trace.analyse import analyse
from torchlayout.trace.document import validated

CUDA = "cuda_nccl_2ranks_rank0.json.gz"
SAMPLED = ("cuda_sampled_128ranks_rank0.json.gz", "cuda_sampled_128ranks_rank1.json.gz")
ROCM = "rocm_mi250_minitoy.json.gz"
WIDTHS = {"Float": 4, "Long": 8, "Byte": 1, "Char": 1, "Int": 4}
ALL = (CUDA, *SAMPLED, ROCM)


def device_events(path: Path) -> list[dict[str, Any]]:
    """What ran on the device, read by json alone."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


@pytest.mark.parametrize("name", ALL)
def test_shares_sum_to_each_step(name: str) -> None:
    document = analyse(real(name)).document
    assert document["steps"]
    for step in document["steps"]:
        for rank in step["ranks"]:
            assert sum(rank["shares"].values()) == pytest.approx(rank["seconds"], rel=1e-9)
    assert sum(document["mean"].values()) == pytest.approx(1)
    world = document["world"]
    assert document["notes"] == (
        [f"1 of {world} ranks were traced: what the others did is not in any figure"] if world else []
    )
    validated(document)


@pytest.mark.parametrize("name", ALL)
def test_every_kernel_is_listed_with_its_runs_and_its_time(name: str) -> None:
    expected: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in device_events(real(name)):
        expected[event["name"]][0] += 1
        expected[event["name"]][1] += event["dur"] / 1e6
    kernels = analyse(real(name)).document["kernels"]
    assert {row["name"]: [row["count"], pytest.approx(row["seconds"], abs=1e-9)] for row in kernels} == expected
    assert [row["seconds"] for row in kernels] == sorted((row["seconds"] for row in kernels), reverse=True)


def test_nccl_time_by_collective_is_that_of_an_independent_sum() -> None:
    expected: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0])
    for event in device_events(real(CUDA)):
        if event["name"].startswith("nccl"):
            row = expected[event["args"]["Collective name"]]
            row[0] += 1
            row[1] += event["dur"] / 1e6
            row[2] += event["args"]["In msg nelems"] * WIDTHS[event["args"]["dtype"]]
    document = analyse(real(CUDA)).document
    steps = len(document["steps"])
    found = {row["collective"]: row for row in document["collectives"]}
    assert found.keys() == {"all_reduce", "broadcast"}
    for name, kind in (("allreduce", "all_reduce"), ("broadcast", "broadcast")):
        assert found[kind]["count"] * steps == pytest.approx(expected[name][0])
        assert found[kind]["seconds"] * steps == pytest.approx(expected[name][1], rel=1e-9)
        assert found[kind]["bytes"] * steps == pytest.approx(expected[name][2])
        assert (found[kind]["axis"], found[kind]["group_size"]) == ("world", 2)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_trace_that_says_nothing_of_groups_has_its_messages_charged_to_no_axis(name: str) -> None:
    sent = [event for event in device_events(real(name)) if event["name"].startswith("nccl")]
    document = analyse(real(name)).document
    (row,) = document["collectives"]
    assert (row["collective"], row["axis"], row["bytes"], row["bus_bytes_per_second"]) == (
        "send_recv",
        "other",
        0,
        None,
    )
    assert row["count"] * len(document["steps"]) == len(sent)
    assert row["seconds"] * len(document["steps"]) == pytest.approx(sum(event["dur"] for event in sent) / 1e6)


def test_device_and_steps_are_told() -> None:
    cuda, sampled, rocm = (analyse(real(name)).document for name in (CUDA, SAMPLED[0], ROCM))
    assert (cuda["device"], cuda["device_name"], cuda["world"]) == ("cuda", "NVIDIA A100-PG509-200", 2)
    assert (sampled["device"], sampled["device_name"], sampled["world"]) == ("cuda", None, 128)
    assert (rocm["device"], rocm["device_name"], rocm["world"]) == ("rocm", "AMD Radeon Graphics", None)
    assert [[step["step"] for step in one["steps"]] for one in (cuda, sampled, rocm)] == [[4, 5, 6], [551, 552], [1, 2]]


def test_classes_of_the_rocm_trace() -> None:
    kernels = analyse(real(ROCM)).document["kernels"]
    assert {row["name"][:5] for row in kernels if row["class"] == "gemm"} == {"Cijk_"}
    assert {row["class"] for row in kernels} == {"gemm", "elementwise"}


def test_ranks_of_a_folder_are_analysed_together(tmp_path: Path) -> None:
    for name in SAMPLED:
        (tmp_path / name).symlink_to(real(name))
    document = analyse(tmp_path).document
    assert document["ranks"] == [0, 1]
    assert [len(step["ranks"]) for step in document["steps"]] == [2, 2]
