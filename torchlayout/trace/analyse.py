"""From the traces of a folder to breakdown.json, the timeline, its pictures and one trace of all ranks."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchlayout.errors import InputError
from torchlayout.files import write_atomically
from torchlayout.trace.activity import Activity
from torchlayout.trace.align import aligned
from torchlayout.trace.breakdown import Known, StepCuts, breakdown, cut_steps
from torchlayout.trace.device import device_activity
from torchlayout.trace.figure import draw
from torchlayout.trace.host import host_activity
from torchlayout.trace.meet import settled
from torchlayout.trace.merge import merge
from torchlayout.trace.rank import read_rank
from torchlayout.trace.read import trace_files
from torchlayout.trace.timeline import timeline_document

# Below this all files together are read sooner than processes start.
WORTH_PROCESSES_BYTES = 8 * 2**20

MUCH_SLOWER = 1.2

Report = Callable[[int, int], None]
"""Told how many bytes are done of how many."""


@dataclass(frozen=True)
class Analysis:
    """The steps of one window of traces, on all its ranks."""

    activities: tuple[Activity, ...]
    steps: tuple[StepCuts, ...]
    document: dict[str, Any]

    def write(self, folder: Path) -> None:
        """breakdown.json, timeline.json.gz, timeline.png, timeline.svg and merged.json.gz."""
        timeline = timeline_document(self.activities, self.steps)
        packed = gzip.compress(json.dumps(timeline, separators=(",", ":")).encode(), 6, mtime=0)
        write_atomically(folder / "timeline.json.gz", packed)
        draw(timeline, folder)
        merge(self.activities, self.steps, folder / "merged.json.gz")
        # Last, as readers take the other files from its presence.
        write_atomically(folder / "breakdown.json", json.dumps(self.document, indent=1, allow_nan=False) + "\n")


def analyse(
    source: Path, known: Known | None = None, *, step: int | None = None, jobs: int = 1, report: Report | None = None
) -> Analysis:
    """Analyse the traces of a folder, or one trace; step: only this one.

    A trace that cannot be read is left out, and a note says so. Raises InputError where none can be, and for a step
    that no trace holds.
    """
    known = known or Known()
    named = [source] if source.is_file() else list(trace_files(source))
    files = [path for path in named if path.is_file()]
    strange = [f"{path} is no regular file" for path in named if path not in files]
    if not files:
        raise InputError(f"{source} holds no trace; name a run, a folder with *.pt.trace.json.gz, or such a file")
    activities, unread = _read(files, jobs, report or (lambda done, total: None))
    unread = [*strange, *unread]
    if not activities:
        raise InputError(*unread)
    activities = _one_of_each(activities, unread)
    refuse_mixture(activities, source)
    activities = settled(aligned(activities))
    if step is not None:
        held = sorted({one.number for activity in activities for one in activity.steps})
        if step not in held:
            raise InputError(f"no trace in {source} holds step {step}; held: {', '.join(map(str, held))}")
        activities = [_only(one, step) for one in activities if any(each.number == step for each in one.steps)]
    steps = cut_steps(activities)
    document = breakdown(str(source), activities, steps, known)
    document["notes"] = [*unread, *document["notes"], *slowed(document)]
    return Analysis(tuple(activities), tuple(steps), document)


def read_activity(path: Path) -> Activity:
    """What the rank did whose trace this is; raises InputError for a file that is no trace."""
    trace = read_rank(path)
    return host_activity(trace) if trace.device == "cpu" else device_activity(trace)


def _read(files: Sequence[Path], jobs: int, report: Report) -> tuple[list[Activity], list[str]]:
    sizes = [path.stat().st_size for path in files]
    activities, unread, done = [], [], 0
    report(done, sum(sizes))
    for result, size in zip(_results(files, jobs if sum(sizes) > WORTH_PROCESSES_BYTES else 1), sizes, strict=True):
        done += size
        report(done, sum(sizes))
        if isinstance(result, Activity):
            activities.append(result)
        else:
            unread.append(result)
    return activities, unread


def _results(files: Sequence[Path], jobs: int) -> Iterable[Activity | str]:
    if jobs <= 1 or len(files) == 1:
        yield from map(_activity_or_reason, files)
        return
    spawned = multiprocessing.get_context("spawn")
    workers = min(jobs, len(files))
    try:
        with ProcessPoolExecutor(workers, mp_context=spawned, initializer=_leave_with_parent) as pool:
            yield from pool.map(_activity_or_reason, files)
    except BrokenProcessPool as error:
        raise InputError("a process that read traces was killed, maybe as memory ran out; try --jobs 1") from error


def _leave_with_parent() -> None:
    """End this process once the one that started it is gone: a pool's workers would wait for work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _activity_or_reason(path: Path) -> Activity | str:
    try:
        return read_activity(path)
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever a file holds, the other ranks' are worth reading
        return f"{path} could not be made sense of: {type(error).__name__}: {error}"


def _one_of_each(activities: Iterable[Activity], notes: list[str]) -> list[Activity]:
    """A trace for each rank, by rank; a rank's second trace is left out."""
    by_rank: dict[int, Activity] = {}
    for activity in activities:
        if by_rank.setdefault(activity.rank, activity) is not activity:
            notes.append(f"rank {activity.rank} has more than one trace here; the first by name counts")
    return [by_rank[rank] for rank in sorted(by_rank)]


def refuse_mixture(activities: Sequence[Activity], source: Path) -> None:
    """Raises InputError for traces of several jobs: another number of ranks, or no step that two ranks share."""
    worlds = sorted({activity.world for activity in activities if activity.world is not None})
    if len(worlds) > 1:
        sizes = " and ".join(map(str, worlds))
        raise InputError(f"{source} holds traces of jobs of {sizes} ranks; analyse those of one job at a time")
    if len(kinds := sorted({activity.device for activity in activities})) > 1:
        raise InputError(f"{source} holds traces of {' and '.join(kinds)} ranks; analyse those of one job at a time")
    first = {step.number for step in activities[0].steps}
    for activity in activities[1:]:
        if first.isdisjoint(step.number for step in activity.steps):
            raise InputError(
                f"the traces of rank {activities[0].rank} and rank {activity.rank} in {source} have no step in common; "
                "analyse those of one window at a time"
            )


def slowed(document: Mapping[str, Any]) -> list[str]:
    """A note where the profiler slows steps down so much that shares are no longer those of a usual step."""
    usual, steps = document["untraced_seconds"], document["steps"]
    traced = min((step["seconds"] for step in steps), default=0.0)
    if usual is None or traced < MUCH_SLOWER * usual:
        return []
    return [
        f"traced steps take {traced / usual:.1f} times as long as the others ({usual:.4g} s in the median): the host "
        "pays for the profiler, which adds to idle time most"
    ]


def _only(activity: Activity, step: int) -> Activity:
    steps = tuple(one for one in activity.steps if one.number == step)
    return replace(activity, steps=steps, kernels=tuple(one for one in activity.kernels if one.step == step))
