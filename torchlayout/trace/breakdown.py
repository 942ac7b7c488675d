"""breakdown.json: where each step's time went, on every rank that was traced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import Any

from torchlayout.trace.activity import Activity, Step, Work
from torchlayout.trace.causes import causes
from torchlayout.trace.collectives import SECOND, CollectiveTable, kernel_table, seconds
from torchlayout.trace.intervals import clip, length, union
from torchlayout.trace.meet import Meetings
from torchlayout.trace.pipeline import Finished, charge_bubble, pipelines, schedule_bubble
from torchlayout.trace.shares import SHARES, Cut, by_collective, cut

VERSION = 1


@dataclass(frozen=True)
class Known:
    """What is known of a run beside its traces; model FLOPs are those of a step, over all ranks.

    untraced_seconds: the median step that was neither warm-up nor profiled.
    """

    layout: str | None = None
    flops_per_step: float | None = None
    predicted: Mapping[str, Any] | None = None
    memory: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    untraced_seconds: float | None = None


@dataclass(frozen=True)
class StepCuts:
    """A step on the ranks that were traced in it, and what ranks did together in all steps."""

    number: int
    cuts: dict[int, Cut]
    meetings: Meetings

    @cached_property
    def start(self) -> int:
        return min(one.step.start for one in self.cuts.values())

    @cached_property
    def seconds(self) -> float:
        """The longest rank's."""
        return max(one.step.end - one.step.start for one in self.cuts.values()) / SECOND


def cut_steps(activities: Sequence[Activity]) -> list[StepCuts]:
    """Every step of every rank, cut into shares."""
    seen: defaultdict[int, dict[int, Step]] = defaultdict(dict)
    for activity in activities:
        for step in activity.steps:
            seen[step.number][activity.rank] = step
    meetings = Meetings(activities)
    return [_cut_step(activities, number, seen[number], meetings) for number in sorted(seen)]


def _cut_step(activities: Sequence[Activity], number: int, steps: Mapping[int, Step], meetings: Meetings) -> StepCuts:
    present = [activity for activity in activities if activity.rank in steps]
    cuts = {one.rank: cut(one, steps[one.rank], meetings) for one in present}
    for group in pipelines(present):
        works = {one.rank: one.working(steps[one.rank]) for one in group}
        finished = Finished([work for of_rank in works.values() for work in of_rank])
        for rank, work in works.items():
            cuts[rank] = charge_bubble(cuts[rank], work, finished)
    return StepCuts(number, cuts, meetings)


def breakdown(traces: str, activities: Sequence[Activity], steps: Sequence[StepCuts], known: Known) -> dict[str, Any]:
    """The document."""
    table = CollectiveTable()
    by_rank = {activity.rank: activity for activity in activities}
    for step in steps:
        for rank, one in step.cuts.items():
            table.add(by_rank[rank], one, step.meetings)
    first = activities[0]
    world = next((one.world for one in activities if one.world is not None), None)
    each = None if known.flops_per_step is None or not world else known.flops_per_step / world
    document: dict[str, Any] = {
        "version": VERSION,
        "traces": traces,
        "layout": known.layout,
        "world": world,
        "ranks": sorted(by_rank),
        "device": first.device,
        "device_name": first.device_name,
        "steps": [_step(step, by_rank, each) for step in steps],
        "mean": _mean(steps),
        "worst": _worst(steps),
        "stages": _stages(activities, steps),
        "pipeline": _pipeline(activities, steps),
        "collectives": table.document(),
        "kernels": kernel_table(activities),
        "predicted": known.predicted,
        "memory": list(known.memory),
        "untraced_seconds": known.untraced_seconds,
        "notes": [
            *(note for activity in activities for note in activity.notes),
            *_missing(activities, world),
            *known.notes,
        ],
    }
    return document | {"causes": [cause._asdict() for cause in causes(document)]}


def _missing(activities: Sequence[Activity], world: int | None) -> Iterator[str]:
    if world is not None and len(activities) < world:
        yield f"{len(activities)} of {world} ranks were traced: what the others did is not in any figure"
    if any(len(group) < len(group[0].pipeline) for group in pipelines(activities)):
        yield (
            "not every rank of a pipeline was traced, so its bubble is not measured: "
            "a part of it counts as communication along pp, or as idle"
        )


def _step(step: StepCuts, by_rank: Mapping[int, Activity], flops: float | None) -> dict[str, Any]:
    return {
        "step": step.number,
        "seconds": step.seconds,
        "ranks": [_rank(by_rank[rank], one, step.start, flops) for rank, one in sorted(step.cuts.items())],
    }


def _rank(activity: Activity, one: Cut, start: int, flops: float | None) -> dict[str, Any]:
    shares = one.nanoseconds()
    if sum(shares.values()) != one.step.end - one.step.start:
        raise AssertionError(f"shares of rank {activity.rank} in step {one.step.number} do not sum to the step")
    exposed = sum(spent for name, spent in shares.items() if name.startswith("communication/"))
    hidden = {name: length(spans) for name, spans in one.hidden.items()}
    both = exposed + sum(hidden.values())
    computing = sum(spent for name, spent in shares.items() if name.startswith("compute/"))
    return {
        "rank": activity.rank,
        "start": (one.step.start - start) / SECOND,
        "seconds": (one.step.end - one.step.start) / SECOND,
        "shares": seconds(shares),
        "hidden": seconds(hidden),
        "overlap": sum(hidden.values()) / both if both else None,
        "collectives": seconds(by_collective(activity, one)),
        "waiting": seconds({name: length(spans) for name, spans in one.waiting.items()}),
        "flops_per_second": flops / (computing / SECOND) if flops and computing else None,
    }


def _mean(steps: Sequence[StepCuts]) -> dict[str, float]:
    """Fractions of the step, over steps and ranks; they sum to 1."""
    sums: defaultdict[str, int] = defaultdict(int)
    for step in steps:
        for one in step.cuts.values():
            for name, spent in one.nanoseconds().items():
                sums[name] += spent
    total = sum(sums.values())
    return {name: sums[name] / total for name in SHARES if sums[name]} if total else {}


def _worst(steps: Sequence[StepCuts]) -> dict[str, Any] | None:
    lengths = [(one.step.end - one.step.start, step.number, rank) for step in steps for rank, one in step.cuts.items()]
    if not lengths:
        return None
    longest, number, rank = max(lengths, key=lambda row: (row[0], -row[1], -row[2]))
    return {"step": number, "rank": rank, "seconds": longest / SECOND}


def _work_of(activity: Activity, steps: Sequence[StepCuts]) -> list[list[Work]]:
    return [activity.working(step.cuts[activity.rank].step) for step in steps if activity.rank in step.cuts]


def _stages(activities: Sequence[Activity], steps: Sequence[StepCuts]) -> list[dict[str, Any]]:
    """Each stage on each rank that holds it: seconds of a micro-batch, means over steps."""
    rows = []
    for activity in activities:
        of_steps = _work_of(activity, steps)
        for stage in sorted({work.stage for step in of_steps for work in step}):
            spent: defaultdict[str, list[int]] = defaultdict(list)
            for step in of_steps:
                for work in step:
                    if work.stage == stage:
                        spent[work.phase].append(work.end - work.start)
            rows.append(
                {"stage": stage, "rank": activity.rank}
                | {
                    f"{phase}_seconds": mean(spent[phase]) / SECOND if spent[phase] else 0.0
                    for phase in ("forward", "backward", "weight")
                }
                | {"micro_batches": round(len(spent["forward"]) / max(1, len(of_steps)))}
            )
    return sorted(rows, key=lambda row: (row["stage"], row["rank"]))


def _pipeline(activities: Sequence[Activity], steps: Sequence[StepCuts]) -> dict[str, Any] | None:
    """The bubble as a fraction of the pipeline's makespan, measured and by the schedule's own count."""
    by_rank: defaultdict[int, list[float]] = defaultdict(list)
    counted = []
    for step in steps:
        for group in pipelines([one for one in activities if one.rank in step.cuts]):
            works = {one.rank: one.working(step.cuts[one.rank].step) for one in group}
            all_work = [work for of_rank in works.values() for work in of_rank]
            if not all_work:
                continue
            if len(group) < len(group[0].pipeline):
                continue  # when a rank that was not traced had finished is not known
            start, end = min(work.start for work in all_work), max(work.end for work in all_work)
            counted.append(schedule_bubble(works))
            for rank in works:
                shares = step.cuts[rank].shares.items()
                waits = union(*(spans for name, spans in shares if name.startswith("bubble/")))
                by_rank[rank].append(length(clip(waits, start, end)) / max(1, end - start))
    if not any(activity.pipeline and activity.work for activity in activities):
        return None
    known = [value for value in counted if value is not None]
    return {
        "bubble": mean(value for values in by_rank.values() for value in values) if by_rank else None,
        "schedule": mean(known) if known else None,
        "by_rank": {str(rank): mean(values) for rank, values in sorted(by_rank.items())},
    }


def families(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares summed by what comes before the slash: compute, communication, bubble, ..."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, value in shares.items():
        sums[name.split("/")[0]] += value
    return dict(sums)
