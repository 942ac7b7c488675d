"""timeline.json.gz, one step at a time: checked, cut to what a browser can hold, and packed again."""

from __future__ import annotations

import gzip
import json
from operator import itemgetter
from pathlib import Path
from typing import Any

from torchlayout.errors import InputError
from torchlayout.tensorboard_plugin.read import LARGEST, MIB, items, positive, read_json, tables, whole

# Five steps of 256 ranks with 2,000 events each; as Python objects it takes ten times as much.
MOST_BYTES = 192 * MIB
MOST_EVENTS = 1_000_000
MOST_LANES = 4096
MOST_KINDS = 256  # a byte each, there
LONGEST = 1e15  # microseconds, 30 years

Event = list[Any]
"""[start_us, duration_us, track, kind, name, stage, micro_batch, bytes]"""


def steps_of(path: Path) -> list[int]:
    """The steps in a timeline, for a window without a breakdown; raises InputError where it cannot be read."""
    return [step for raw in _read(path)["steps"] if (step := whole(raw.get("step"))) is not None]


def packed(path: Path, step: int) -> bytes:
    """The answer to a request for one step, as gzip'd JSON; raises InputError where there is no such step."""
    raw = _read(path)
    found = next((entry for entry in raw["steps"] if whole(entry.get("step")) == step), None)
    if found is None:
        raise InputError(f"{path.name} has no step {step}")
    kinds = [str(word)[:300] for word in items(raw.get("kinds"))[:MOST_KINDS]]
    names = [str(word)[:300] for word in items(raw.get("names"))]
    ranked = [(rank, lane) for lane in tables(found.get("lanes")) if (rank := whole(lane.get("rank"))) is not None]
    ranked.sort(key=itemgetter(0))
    lanes = []
    lost = 0
    for rank, lane in ranked[:MOST_LANES]:
        given = items(lane.get("events"))
        events = [event for event in given if _is_event(event, len(kinds), len(names))]
        lost += len(given) - len(events)
        events.sort(key=itemgetter(0))
        lanes.append({"rank": rank, "events": events})
    notes = [f"{lost:,} events of {path.name} are not of the agreed form and left out"] if lost else []
    if len(ranked) > MOST_LANES:
        notes.append(f"only the lanes of the first {MOST_LANES:,} of {len(ranked):,} ranks are shown")
    notes += _thin(lanes)
    timeline = {"step": step, "seconds": positive(found.get("seconds")), "kinds": kinds, "names": names, "lanes": lanes}
    content = json.dumps({"timeline": timeline, "notes": notes}, separators=(",", ":"), allow_nan=False)
    return gzip.compress(content.encode(), compresslevel=1)


def _read(path: Path) -> dict[str, Any]:
    raw = read_json(path, MOST_BYTES)
    if not isinstance(raw, dict) or raw.get("version") != 1:
        raise InputError(f"{path.name} is no timeline of version 1; make it again with this version of torchlayout")
    return raw | {"steps": tables(raw.get("steps"))}


def _is_event(event: Any, kinds: int, names: int) -> bool:
    if type(event) is not list or len(event) != 8:
        return False
    try:
        start, duration, track, kind, name, stage, micro_batch, count = event
        return (
            -LONGEST < start < LONGEST
            and 0 <= duration < LONGEST
            and track in (0, 1)
            and type(kind) is type(name) is int
            and 0 <= kind < kinds
            and 0 <= name < names
            and -1 <= stage < LARGEST
            and -1 <= micro_batch < LARGEST
            and 0 <= count < LARGEST
        )
    except TypeError:
        return False


def _thin(lanes: list[dict[str, Any]]) -> list[str]:
    """Takes the shortest events away where there are more than a browser draws at once."""
    total = sum(len(lane["events"]) for lane in lanes)
    if total <= MOST_EVENTS:
        return []
    durations = sorted((event[1] for lane in lanes for event in lane["events"]), reverse=True)
    shortest = durations[MOST_EVENTS - 1]
    for lane in lanes:
        lane["events"] = [event for event in lane["events"] if event[1] > shortest]
    kept = sum(len(lane["events"]) for lane in lanes)
    return [f"{total - kept:,} of {total:,} events, those of {shortest:g} \u00b5s and shorter, are left out"]
