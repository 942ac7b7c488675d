"""One trace of all ranks, merged.json.gz, for Perfetto or chrome://tracing: a process for each rank, on one clock."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchlayout.files import replacing
from torchlayout.trace.activity import Activity
from torchlayout.trace.breakdown import StepCuts
from torchlayout.trace.timeline import DOING, MICROSECOND, Piece, pieces

TRACKS = {0: "step", 1: "communication"}
# The names of colours that both viewers know.
COLOURS = {
    "forward": "thread_state_running",
    "backward": "rail_animation",
    "weight": "good",
    "bubble": "grey",
    "communication": "terrible",
    "idle": "white",
    "data": "rail_load",
    "optimizer": "rail_response",
    "checkpoint": "olive",
}


def merge(activities: Sequence[Activity], steps: Sequence[StepCuts], path: Path) -> None:
    """Write the trace; it replaces one of that name once it is whole."""
    # Without a name and a time, the same steps give the same bytes.
    with replacing(path) as target, gzip.GzipFile("", "wb", 5, target, mtime=0) as file:
        before = '{"displayTimeUnit": "ms", "traceEvents": [\n'
        for event in _events(activities, steps):
            file.write((before + json.dumps(event, separators=(",", ":"))).encode())
            before = ",\n"
        file.write(b"\n]}\n")


def _events(activities: Sequence[Activity], steps: Sequence[StepCuts]) -> Iterator[Mapping[str, Any]]:
    zero = min((step.start for step in steps), default=0)
    for activity in activities:
        yield _named("process_name", activity.rank, 0, f"rank {activity.rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": activity.rank, "args": {"sort_index": activity.rank}}
        for track, name in TRACKS.items():
            yield _named("thread_name", activity.rank, track, name)
        for step in steps:
            if activity.rank in step.cuts:
                one = step.cuts[activity.rank]
                yield from (_event(activity.rank, piece, step.number, zero) for piece in pieces(activity, one))


def _named(what: str, rank: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": {"name": name}}


def _event(rank: int, piece: Piece, step: int, zero: int) -> dict[str, Any]:
    name = piece.name if piece.micro_batch < 0 else f"{piece.kind} {piece.micro_batch} (stage {piece.stage})"
    event = {
        "ph": "X",
        "cat": piece.kind,
        "name": name,
        "pid": rank,
        "tid": piece.track,
        "ts": (piece.start - zero) / MICROSECOND,
        "dur": (piece.end - piece.start) / MICROSECOND,
        "args": {"step": step} | ({"bytes": piece.bytes} if piece.bytes else {}),
    }
    return event | ({"cname": COLOURS[piece.kind]} if piece.track == DOING and piece.kind in COLOURS else {})
