"""Hosts whose clocks differ, brought together by what their ranks ended together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.traces import Traced, row_of, write_all
from torchlayout.trace.align import aligned
from torchlayout.trace.analyse import analyse, read_activity

Pairs = list[tuple[int, int]]


def met(hosts: str, ahead: dict[str, float], pairs: Pairs, starts: dict[int, float] | None = None) -> list[Traced]:
    """A rank on each host (by letter), an all-reduce for each pair that ends at the same moment on both."""
    groups = [(str(number), "mesh_dp", list(pair)) for number, pair in enumerate(pairs)]
    traces = []
    for rank, host in enumerate(hosts):
        trace = Traced(rank, len(hosts), host=host, ahead=ahead[host], groups=groups)
        start = (starts or {}).get(rank, 0)
        trace.mark("step", start, 1000, step=1)
        trace.kernel("ampere_sgemm_32x32", start, start + 5)
        for number, pair in enumerate(pairs):
            if rank in pair:
                for repeat in range(3):
                    end = 100 * (number + 1) + 20 * repeat + 20
                    trace.nccl("allreduce", end - 10 - rank, end, str(number))
        traces.append(trace)
    return traces


def starts_of(traces: list[Traced], folder: Path) -> list[float]:
    """When each rank's step begins, in microseconds after the first."""
    document: dict[str, Any] = analyse(write_all(folder, traces)).document
    return [round(row_of(document, trace.rank)["start"] * 1e6, 3) for trace in traces]


@pytest.mark.parametrize("ahead", [0, 3.5, -70000, 5e9])
def test_two_hosts_are_brought_on_one_clock(ahead: float, tmp_path: Path) -> None:
    traces = met("ab", {"a": 0, "b": ahead}, [(0, 1)], {0: 10, 1: 25})
    assert starts_of(traces, tmp_path) == [0, 15]


def test_hosts_are_reached_through_others(tmp_path: Path) -> None:
    """c shares nothing with a, but both share with b."""
    traces = met("abcd", {"a": 100, "b": 5000, "c": -900, "d": 44}, [(0, 1), (1, 2), (2, 3)], {1: 7, 2: 9, 3: 1})
    assert starts_of(traces, tmp_path) == [0, 7, 9, 1]


def test_a_host_with_nothing_in_common_begins_its_step_with_the_others(tmp_path: Path) -> None:
    traces = met("abc", {"a": 0, "b": 5000, "c": 123456}, [(0, 1)], {0: 10, 1: 25, 2: 30})
    assert starts_of(traces, tmp_path) == [0, 15, 0]


def test_one_late_ending_does_not_move_a_clock(tmp_path: Path) -> None:
    traces = met("ab", {"a": 0, "b": 5000}, [(0, 1)])
    last = [event for event in traces[1].events if event["name"].startswith("nccl")][-1]
    last["dur"] += 400
    assert starts_of(traces, tmp_path) == [0, 0]


def test_ranks_of_one_host_are_left_as_they_are(tmp_path: Path) -> None:
    traces = met("aa", {"a": 0}, [(0, 1)], {1: 12})
    activities = [read_activity(trace.write(tmp_path)) for trace in traces]
    assert aligned(activities) == activities
    assert starts_of(traces, tmp_path) == [0, 12]


def test_everything_of_a_rank_moves_with_its_clock(tmp_path: Path) -> None:
    documents = []
    for ahead in (0, 12345):
        traces = met("ab", {"a": 0, "b": ahead}, [(0, 1)], {1: 12})
        traces[1].mark("data", 30, 40)
        traces[1].mark("optimizer", 50, 60)
        traces[1].mark("forward", 60, 70, stage=0, micro_batch=0)
        traces[1].kernel("multi_tensor_apply_kernel", 70, 80, launched=55)
        traces[1].kernel("ampere_sgemm_32x32", 80, 90, launched=65)
        document = analyse(write_all(tmp_path / str(ahead), traces)).document
        documents.append(document | {"traces": ""})
    assert documents[0] == documents[1]
