"""What a step's time is lost to, in sentences, the largest loss first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import mean, median
from typing import Any, NamedTuple

# What takes less of the step than this is no cause.
LEAST = 0.05

# Of a rank that is slower than those with the same work.
LEAST_STRAGGLE = 0.1
MOST_NAMED = 4
HOST_IS_SLOW = (
    "devices are idle {share} of the step: the host does not launch kernels fast enough; a larger micro-batch or "
    "kernels.compile = true gives it less to launch"
)
PYTHON_IS_SLOW = "nothing computes for {share} of the step but Python, between operators: they are small"

RankStep = Mapping[str, Any]
"""A rank's part of a step, as in breakdown.json."""


class Cause(NamedTuple):
    """A loss in seconds of a step; rank: whose fault it is, None where it is nobody's alone."""

    kind: str
    rank: int | None
    seconds: float
    sentence: str


def causes(document: Mapping[str, Any]) -> list[Cause]:
    """The causes of lost time in a breakdown.json, from its steps, stages and collectives."""
    steps, stages = document["steps"], document["stages"]
    if not steps:
        return []
    ranks = _by_rank(steps)
    # The same base as that of the shares: over ranks and steps.
    step = mean(part["seconds"] for parts in ranks.values() for part in parts)
    idle = HOST_IS_SLOW if document["device"] != "cpu" else PYTHON_IS_SLOW
    found = [
        *_data(ranks, step),
        *_stragglers(ranks, stages, step),
        *_communication(ranks, document["collectives"], step),
        *_shared(ranks, "bubble", step, "ranks wait {share} of the step for a neighbour in the pipeline (bubble)"),
        *_shared(ranks, "idle", step, idle),
        *_shared(ranks, "checkpoint", step, "saving a checkpoint takes {share} of the step"),
        *_shared(ranks, "optimizer", step, "the optimizer's step takes {share} of the step", least=0.15),
        *_imbalance(stages, step),
    ]
    return sorted(found, key=lambda cause: -cause.seconds)


def _by_rank(steps: list[Mapping[str, Any]]) -> dict[int, list[RankStep]]:
    ranks: defaultdict[int, list[RankStep]] = defaultdict(list)
    for step in steps:
        for rank in step["ranks"]:
            ranks[rank["rank"]].append(rank)
    return dict(ranks)


def _family(part: RankStep, family: str) -> float:
    return float(sum(value for name, value in part["shares"].items() if name.split("/")[0] == family))


def _mean_of(parts: list[RankStep], family: str) -> float:
    return mean(_family(part, family) for part in parts)


def _percent(seconds: float, step: float) -> str:
    return f"{100 * seconds / step:.0f}%"


def _data(ranks: dict[int, list[RankStep]], step: float) -> list[Cause]:
    waits = {rank: _mean_of(parts, "data") for rank, parts in ranks.items()}
    worst = max(waits, key=lambda rank: waits[rank])
    lost = waits[worst]
    if lost < LEAST * step:
        return []
    waiting = [rank for rank in sorted(waits) if waits[rank] >= lost / 2]
    alone = len(waiting) == 1
    if len(waiting) == len(waits) > 1:
        whose = f"every rank waits, up to {_percent(lost, step)} of the step,"
    elif alone:
        whose = f"rank {worst} waits {_percent(lost, step)} of the step"
    else:
        named = ", ".join(map(str, waiting[:MOST_NAMED])) + (", ..." if len(waiting) > MOST_NAMED else "")
        whose = f"ranks {named} wait, up to {_percent(lost, step)} of the step,"
    sentence = f"{whose} for data: the loader is too slow; raise data.workers"
    return [Cause("data", worst if alone else None, lost, sentence)]


def _own_seconds(part: RankStep) -> float:
    """What a rank needs for itself: neither waiting for others, nor for data, nor moving anything."""
    return float(part["seconds"] - sum(_family(part, family) for family in ("communication", "bubble", "data")))


def _stragglers(ranks: dict[int, list[RankStep]], stages: list[Mapping[str, Any]], step: float) -> list[Cause]:
    """The slowest of the ranks that hold the same stages: those of other stages have other work."""
    held: defaultdict[int, set[int]] = defaultdict(set)
    for stage in stages:
        held[stage["rank"]].add(stage["stage"])
    alike: defaultdict[frozenset[int], dict[int, float]] = defaultdict(dict)
    for rank, parts in ranks.items():
        alike[frozenset(held[rank])][rank] = mean(map(_own_seconds, parts))
    idle = {rank: _mean_of(parts, "idle") for rank, parts in ranks.items()}
    return [cause for own in alike.values() if len(own) > 1 for cause in _straggler(own, idle, step)]


def _straggler(own: dict[int, float], idle: dict[int, float], step: float) -> list[Cause]:
    worst = max(own, key=lambda rank: own[rank])
    others = [rank for rank in own if rank != worst]
    usual = median(own[rank] for rank in others)
    lost = own[worst] - usual
    if lost < LEAST_STRAGGLE * step or usual <= 0:
        return []
    idler = idle[worst] - median(idle[rank] for rank in others)
    what = "its host is slower, so that it is idle" if idler > lost / 2 else "it computes"
    against = f"rank {others[0]}" if len(others) == 1 else "the others in the median"
    sentence = (
        f"rank {worst} is a straggler: {what} for {_percent(lost, step)} of the step longer than {against} "
        f"({own[worst] / usual:.1f} times the time)"
    )
    return [Cause("straggler", worst, lost, sentence)]


def _communication(ranks: dict[int, list[RankStep]], collectives: list[Mapping[str, Any]], step: float) -> list[Cause]:
    """By axis, less what only waited for a slower rank."""
    moved: defaultdict[str, float] = defaultdict(float)
    for parts in ranks.values():
        for part in parts:
            for name, value in part["shares"].items():
                if name.startswith("communication/"):
                    moved[name.split("/")[1]] += value - part["waiting"].get(name, 0.0)
    rank_steps = sum(map(len, ranks.values()))
    found = []
    for axis, total in moved.items():
        lost = total / rank_steps
        if lost >= LEAST * step:
            rows = [row for row in collectives if row["axis"] == axis]
            kind = max(rows, key=lambda row: row["exposed_seconds"])["collective"] if rows else "unknown"
            sentence = f"communication along {axis}, mostly {kind}, is exposed for {_percent(lost, step)} of the step"
            found.append(Cause("communication", None, lost, sentence))
    return found


def _shared(
    ranks: dict[int, list[RankStep]], family: str, step: float, sentence: str, least: float = LEAST
) -> list[Cause]:
    lost = mean(_mean_of(parts, family) for parts in ranks.values())
    if lost < least * step:
        return []
    return [Cause(family, None, lost, sentence.format(share=_percent(lost, step)))]


def _imbalance(stages: list[Mapping[str, Any]], step: float) -> list[Cause]:
    """What the slowest stage adds to the step over a stage of average speed."""
    spent: defaultdict[int, list[float]] = defaultdict(list)
    for row in stages:
        each = row["forward_seconds"] + row["backward_seconds"] + row["weight_seconds"]
        spent[row["stage"]].append(row["micro_batches"] * each)
    if len(spent) < 2:
        return []
    of_stage = {stage: mean(values) for stage, values in spent.items()}
    slowest = max(of_stage, key=lambda stage: of_stage[stage])
    usual = mean(of_stage.values())
    lost = of_stage[slowest] - usual
    if lost < LEAST * step:
        return []
    rank = next(row["rank"] for row in stages if row["stage"] == slowest)
    sentence = (
        f"stage {slowest} (rank {rank}) computes {of_stage[slowest] / usual:.1f} times as long as stages do on "
        "average, and the pipeline runs at its speed: give it fewer layers"
    )
    return [Cause("imbalance", rank, lost, sentence)]
