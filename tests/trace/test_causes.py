"""What time is lost to, named first where it is the largest loss."""

from __future__ import annotations

from typing import Any

import pytest

from torchlayout.trace.causes import Cause, causes

IDEAL = {"compute/gemm": 0.7, "compute/attention": 0.15, "communication/fsdp": 0.03, "idle": 0.02, "optimizer": 0.10}


def document(
    *ranks: dict[str, float], waiting: dict[int, dict[str, float]] | None = None, stages: Any = (), steps: int = 2
) -> dict[str, Any]:
    """Steps that are all alike, of ranks with these seconds on top of a sound step of one second."""
    rows = []
    for rank, more in enumerate(ranks):
        shares = {name: IDEAL.get(name, 0) + more.get(name, 0) for name in {*IDEAL, *more}}
        told = {"seconds": sum(shares.values()), "shares": shares, "waiting": (waiting or {}).get(rank, {})}
        rows.append({"rank": rank} | told)
    one = {"seconds": max(row["seconds"] for row in rows), "ranks": rows}
    collectives = [
        {"collective": "all_gather", "axis": "fsdp", "exposed_seconds": 0.2},
        {"collective": "reduce_scatter", "axis": "fsdp", "exposed_seconds": 0.1},
        {"collective": "all_reduce", "axis": "tp", "exposed_seconds": 0.1},
    ]
    rows_of_steps = [one | {"step": number} for number in range(steps)]
    return {"device": "cuda", "steps": rows_of_steps, "stages": stages, "collectives": collectives}


def first(made: dict[str, Any]) -> Cause:
    return causes(made)[0]


def test_nothing_is_lost_in_a_sound_step() -> None:
    assert causes(document({}, {}, {}, {})) == []
    assert causes(document({})) == []


def test_a_straggler_is_named_and_what_the_others_wait_for_it_is_not_communication() -> None:
    late = {"communication/fsdp": 0.8}
    made = document(late, late, {"compute/gemm": 0.8}, late, waiting=dict.fromkeys((0, 1, 3), late))
    (cause,) = causes(made)
    assert (cause.kind, cause.rank) == ("straggler", 2)
    assert cause.seconds == pytest.approx(0.8)
    assert cause.sentence == (
        "rank 2 is a straggler: it computes for 44% of the step longer than the others in the median "
        "(1.8 times the time)"
    )


def test_a_rank_that_does_nothing_for_long_is_a_straggler_too() -> None:
    assert first(document({}, {"idle": 0.9}, {}, {}))[:2] == ("straggler", 1)


def test_a_slow_loader_of_one_rank_is_named_with_it() -> None:
    late = {"communication/fsdp": 0.5}
    cause = first(document(late, {"data": 0.5}, late, late, waiting=dict.fromkeys((0, 2, 3), late)))
    assert (cause.kind, cause.rank) == ("data", 1)
    assert cause.sentence == "rank 1 waits 33% of the step for data: the loader is too slow; raise data.workers"


def test_a_loader_that_is_slow_everywhere_is_nobodys_own() -> None:
    cause = first(document({"data": 0.25}, {"data": 0.26}))
    assert cause.kind == "data"
    assert cause.rank is None
    assert cause.sentence.startswith("every rank waits, up to 21% of the step, for data")


def test_a_loader_that_is_slow_on_some_ranks_names_them() -> None:
    cause = first(document({"data": 0.3}, {"data": 0.3}, {}))
    assert cause.rank is None
    assert cause.sentence.startswith("ranks 0, 1 wait, up to 25% of the step, for data")


def test_an_exposed_collective_is_named_with_its_axis() -> None:
    cause = first(document(*[{"communication/fsdp": 0.4}] * 4))
    assert (cause.kind, cause.rank) == ("communication", None)
    assert cause.sentence == "communication along fsdp, mostly all_gather, is exposed for 31% of the step"


def test_an_imbalance_of_stages_is_named_with_the_slowest() -> None:
    stages = [
        {"stage": rank, "rank": rank, "forward_seconds": each, "backward_seconds": 2 * each, "weight_seconds": 0.0}
        | {"micro_batches": 4}
        for rank, each in enumerate((0.06, 0.06, 0.10, 0.06))
    ]
    made = document({}, {}, {}, {}, stages=stages)
    (cause,) = causes(made)
    assert (cause.kind, cause.rank) == ("imbalance", 2)
    assert cause.seconds == pytest.approx(4 * 3 * (0.10 - 0.07))
    assert cause.sentence.startswith("stage 2 (rank 2) computes 1.4 times as long as stages do on average")


def test_ranks_of_other_stages_are_no_stragglers() -> None:
    """What a stage computes longer is imbalance: the rank is as fast as its like."""
    stages = [
        {"stage": rank // 2, "rank": rank, "forward_seconds": each, "backward_seconds": each, "weight_seconds": 0.0}
        | {"micro_batches": 1}
        for rank, each in enumerate((0.2, 0.2, 0.5, 0.5))
    ]
    slow = {"compute/gemm": 0.6}
    found = {cause.kind for cause in causes(document({}, {}, slow, slow, stages=stages))}
    assert "straggler" not in found
    assert "imbalance" in found


@pytest.mark.parametrize(
    ("share", "kind", "part"),
    [
        ("idle", "idle", "devices are idle 35% of the step"),
        ("bubble/steady", "bubble", "ranks wait 33% of the step for a neighbour"),
        ("checkpoint", "checkpoint", "saving a checkpoint takes 33% of the step"),
        ("optimizer", "optimizer", "the optimizer's step takes 40% of the step"),
    ],
)
def test_what_all_ranks_lose_is_named(share: str, kind: str, part: str) -> None:
    cause = first(document(*[{share: 0.5}] * 2))
    assert (cause.kind, cause.rank) == (kind, None)
    assert part in cause.sentence


def test_the_largest_loss_comes_first() -> None:
    found = causes(document(*[{"data": 0.2, "communication/tp": 0.4, "idle": 0.1}] * 2))
    assert [cause.kind for cause in found] == ["communication", "data", "idle"]
    assert [cause.seconds for cause in found] == sorted((cause.seconds for cause in found), reverse=True)


def test_without_steps_there_are_no_causes() -> None:
    assert causes({"steps": [], "stages": [], "collectives": []}) == []
