"""HolisticTraceAnalysis on the same trace; it is in the extra `hta`, as it brings Jupyter along."""

from __future__ import annotations

import os

import pytest

from harness.traces import real
from torchlayout.trace.analyse import analyse

# Its times are whole microseconds: of fractions HTA rounds away, kernel by kernel.
TRACE = "cuda_sampled_128ranks_rank0.json.gz"


def test_totals_are_those_of_holistic_trace_analysis() -> None:
    hta = pytest.importorskip("hta.trace_analysis", reason="it is in the extra `hta`")
    trace = real(TRACE)
    analysis = hta.TraceAnalysis(
        {0: os.fspath(trace)}, trace_dir=os.fspath(trace.parent), include_last_profiler_step=True
    )
    totals = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    by_kind = dict(zip(kinds["kernel_type"], kinds["sum"], strict=True))
    ranks = [step["ranks"][0] for step in analyse(trace).document["steps"]]

    def ours(*families: str) -> float:
        return 1e6 * sum(v for rank in ranks for name, v in rank["shares"].items() if name.startswith(families))

    moved = sum(time for kind, time in by_kind.items() if "COMMUNICATION" in kind)
    hidden = 1e6 * sum(sum(rank["hidden"].values()) for rank in ranks)
    assert ours("communication") + hidden == pytest.approx(moved, rel=0.01)
    # What it calls memory (copies) is computation here.
    computed = totals["compute_time(us)"] + sum(
        time for kind, time in by_kind.items() if kind in ("MEMORY", "COMMUNICATION overlapping MEMORY")
    )
    assert ours("compute", "optimizer") == pytest.approx(computed, rel=0.01)
    # Its span runs from the first kernel to the last, ours from the first step's start to the last one's end.
    outside = 1e6 * sum(rank["seconds"] for rank in ranks) - totals["kernel_time(us)"]
    assert ours("idle") - outside == pytest.approx(totals["idle_time(us)"], rel=0.01)
