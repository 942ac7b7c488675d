"""Every nanosecond of a step is in one share, whatever overlaps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.traces import Traced, row_of, shares_of, write_all
from torchlayout.trace.activity import CLASSES, Activity, Step, Transfer
from torchlayout.trace.analyse import analyse
from torchlayout.trace.intervals import Intervals, intersect, intervals, length, union
from torchlayout.trace.meet import Meetings
from torchlayout.trace.names import AXES
from torchlayout.trace.shares import SHARES, by_collective, cut

SPAN = st.tuples(st.integers(-20, 120), st.integers(0, 60)).map(lambda pair: (pair[0], pair[0] + pair[1]))
SPANS = st.lists(SPAN, max_size=6).map(lambda pairs: union(intervals(pairs)))
KINDS = ("all_gather", "all_reduce", "send")
TRANSFER = st.builds(
    lambda span, axis, kind: Transfer(*span, kind, kind, axis),
    SPAN,
    st.sampled_from(AXES),
    st.sampled_from(KINDS),
)
STEP = Step(1, 0, 100)


def activity(compute: dict[str, Intervals], **given: Any) -> Activity:
    empty: dict[str, Any] = {"optimizer": intervals([]), "phases": {}, "work": (), "transfers": (), "kernels": ()}
    return Activity(0, "a", "cuda", None, None, (STEP,), compute, **(empty | given))


@settings(max_examples=200)
@given(
    st.fixed_dictionaries(dict.fromkeys(CLASSES, SPANS)),
    SPANS,
    st.fixed_dictionaries({"data": SPANS, "checkpoint": SPANS}),
    st.lists(TRANSFER, max_size=8).map(lambda found: tuple(sorted(found))),
)
def test_shares_cover_the_step_and_none_overlaps_another(
    compute: dict[str, Intervals], optimizer: Intervals, phases: dict[str, Intervals], transfers: tuple[Transfer, ...]
) -> None:
    one = activity(compute, optimizer=optimizer, phases=phases, transfers=transfers)
    found = cut(one, STEP, Meetings([one]))
    assert found.shares.keys() <= set(SHARES)
    assert sum(found.nanoseconds().values()) == 100
    assert length(union(*found.shares.values())) == 100
    whole = intervals([(0, 100)])
    for axis in AXES:
        name = f"communication/{axis}"
        moved = union(intervals(one[:2] for one in transfers if one.axis == axis))
        exposed, hidden = found.shares.get(name), found.hidden.get(name)
        # What is neither exposed nor hidden lies behind another axis' exposed transfers.
        parts = [part for part in (exposed, hidden) if part is not None]
        assert length(union(*parts)) == sum(map(length, parts))
        elsewhere = [found.shares[other] for other in found.shares if other.startswith("communication/")]
        assert length(intersect(moved, whole)) == length(intersect(moved, union(*parts, *elsewhere)))
    spent = found.nanoseconds()
    exposed_in_all = sum(value for name, value in spent.items() if name.startswith("communication/"))
    assert sum(by_collective(one, found).values()) == exposed_in_all


KERNEL = st.tuples(
    st.sampled_from(["ampere_sgemm_32x32", "flash_fwd_kernel", "elementwise_kernel", "odd", "nccl:tp", "nccl:fsdp"]),
    st.integers(0, 100),
    st.integers(0, 50),
    st.integers(1, 4),
)


@settings(max_examples=40)
@given(st.lists(KERNEL, min_size=1, max_size=12))
def test_kernels_on_any_streams_sum_to_the_step(
    tmp_path_factory: pytest.TempPathFactory, kernels: list[tuple[str, int, int, int]]
) -> None:
    trace = Traced(groups=[("1", "mesh_tp", [0, 1]), ("2", "mesh_fsdp", [0, 1])])
    trace.mark("step", 10, 90, step=3)
    for name, start, long, stream in kernels:
        if name.startswith("nccl:"):
            trace.nccl("allreduce", start, start + long, "1" if name == "nccl:tp" else "2", stream=stream)
        else:
            trace.kernel(name, start, start + long, stream=stream)
    folder = tmp_path_factory.mktemp("traces")
    shares = shares_of(analyse(write_all(folder, [trace])).document)
    assert sum(shares.values()) == pytest.approx(80, abs=1e-6)
    busy = set()
    for name, start, long, _ in kernels:
        busy |= {moment for moment in range(max(start, 10), min(start + long, 90)) if not name.startswith("nccl")}
    assert sum(value for name, value in shares.items() if name.startswith("compute/")) == len(busy)


def test_the_order_in_which_shares_claim_a_moment(tmp_path: Any) -> None:
    """Microseconds 0 to 100, everything at once from 0 and each one longer than what comes before."""
    trace = Traced(groups=[("1", "mesh_tp", [0, 1]), ("2", "mesh_fsdp", [0, 1])])
    trace.mark("step", 0, 100, step=1)
    trace.mark("checkpoint", 0, 10)
    trace.mark("optimizer", -5, -1)
    trace.kernel("multi_tensor_apply_kernel", 0, 20, -3, 1)
    trace.kernel("ampere_sgemm_32x32", 0, 30, -10, 2)
    trace.kernel("flash_fwd_kernel", 0, 40, -10, 3)
    trace.kernel("elementwise_kernel", 0, 45, -10, 4)
    trace.kernel("odd", 0, 50, -10, 5)
    trace.mark("data", 0, 60)
    trace.nccl("allreduce", 0, 70, "1", stream=6)
    trace.nccl("_allgather_base", 0, 80, "2", stream=7)
    document = analyse(write_all(tmp_path, [trace])).document
    assert shares_of(document) == {
        "checkpoint": 10,
        "optimizer": 10,
        "compute/gemm": 10,
        "compute/attention": 10,
        "compute/elementwise": 5,
        "compute/other": 5,
        "data": 10,
        "communication/tp": 10,
        "communication/fsdp": 10,
        "idle": 20,
    }
    row = row_of(document)
    assert row["hidden"] == pytest.approx({"communication/tp": 60e-6, "communication/fsdp": 60e-6})
    assert row["overlap"] == pytest.approx(120 / 140)
    assert row["collectives"] == pytest.approx({"all_reduce": 10e-6, "all_gather": 10e-6})
    assert document["mean"] == pytest.approx({name: value / 100 for name, value in shares_of(document).items()})
