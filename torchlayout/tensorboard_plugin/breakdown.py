"""breakdown.json and the memory of each rank as the tab shows them: of every field, what has the agreed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchlayout.errors import InputError
from torchlayout.tensorboard_plugin.read import (
    MIB,
    items,
    number,
    numbers,
    positive,
    read_json,
    table,
    tables,
    text,
    whole,
)

MOST_KERNELS = 200
MOST_RANKS = 4096
MOST_STEPS = 200
MOST_NOTES = 50
MOST_CAUSES = 5


def read_breakdown(path: Path) -> dict[str, Any]:
    """The analysis of one window of traces; raises InputError where there is none that this program reads."""
    raw = _raw(path)
    return {
        "steps": [_step(step) for step in tables(raw.get("steps"))[:MOST_STEPS] if whole(step.get("step")) is not None],
        "mean": numbers(raw.get("mean")),
        "stages": [_numbers_of(stage, *STAGE) for stage in tables(raw.get("stages"))[:MOST_RANKS]],
        "pipeline": _pipeline(raw.get("pipeline")),
        "collectives": [_collective(entry) for entry in tables(raw.get("collectives"))[:MOST_KERNELS]],
        "kernels": [_kernel(entry) for entry in tables(raw.get("kernels"))[:MOST_KERNELS]],
        "kernels_in_all": len(items(raw.get("kernels"))),
        "causes": [_cause(cause) for cause in tables(raw.get("causes"))[:MOST_NOTES] if text(cause.get("sentence"))],
        "untraced_seconds": positive(raw.get("untraced_seconds")),
        "predicted": _predicted(raw.get("predicted")),
        "memory": _memory(raw.get("memory")),
        "notes": [note for note in items(raw.get("notes"))[:MOST_NOTES] if text(note)],
    }


def read_brief(path: Path) -> dict[str, Any]:
    """What the table of runs needs of an analysis, and no more: it is kept of thousands of runs."""
    raw = _raw(path)
    sentences = [sentence for cause in tables(raw.get("causes")) if (sentence := text(cause.get("sentence")))]
    return {
        "layout": text(raw.get("layout")),
        "world": whole(raw.get("world")),
        "device_name": text(raw.get("device_name")),
        "mean": numbers(raw.get("mean")),
        "predicted": _predicted(raw.get("predicted")),
        "causes": sentences[:MOST_CAUSES],
    }


def _raw(path: Path) -> dict[str, Any]:
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise InputError(f"{path.name} does not hold one JSON object")
    if raw.get("version") != 1:
        raise InputError(f"{path.name} has another version than 1; make it again with this version of torchlayout")
    return raw


def read_memory(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The memory files of a window that nobody has analysed yet, and what cannot be read of them."""
    found, notes = [], []
    try:
        paths = sorted(folder.glob("rank*.memory.json"))
    except OSError as error:
        return [], [f"{folder.name} cannot be read: {error.strerror}"]
    for path in paths[:MOST_RANKS]:
        try:
            found.append(read_json(path, 8 * MIB))
        except InputError as error:
            notes.append(str(error))
    return _memory(found), notes[:MOST_NOTES]


STAGE = ("stage", "rank", "forward_seconds", "backward_seconds", "weight_seconds", "micro_batches")


def _numbers_of(raw: dict[str, Any], *names: str) -> dict[str, float | None]:
    return {name: number(raw.get(name)) for name in names}


def _step(raw: dict[str, Any]) -> dict[str, Any]:
    ranks = [_rank(rank) for rank in tables(raw.get("ranks"))[:MOST_RANKS] if whole(rank.get("rank")) is not None]
    longest = max((rank["seconds"] for rank in ranks if rank["seconds"]), default=None)
    return {"step": whole(raw.get("step")), "seconds": positive(raw.get("seconds")) or longest, "ranks": ranks}


def _rank(raw: dict[str, Any]) -> dict[str, Any]:
    shares = numbers(raw.get("shares"))
    return {
        "rank": whole(raw.get("rank")),
        "seconds": positive(raw.get("seconds")) or positive(sum(shares.values())),
        "shares": shares,
        "hidden": numbers(raw.get("hidden")),
        "waiting": numbers(raw.get("waiting")),
        **_numbers_of(raw, "overlap", "flops_per_second"),
    }


def _pipeline(raw: Any) -> dict[str, Any] | None:
    if "bubble" not in table(raw):
        return None
    # A bubble of null is that of a pipeline that was not traced on all its ranks.
    return _numbers_of(raw, "bubble", "schedule") | {"by_rank": numbers(raw.get("by_rank"))}


def _collective(raw: dict[str, Any]) -> dict[str, Any]:
    figures = _numbers_of(raw, "group_size", "count", "bytes", "seconds", "exposed_seconds", "bus_bytes_per_second")
    return {"collective": text(raw.get("collective")), "axis": text(raw.get("axis")), **figures}


def _kernel(raw: dict[str, Any]) -> dict[str, Any]:
    name = raw.get("name")
    # Names of templated kernels run to thousands of characters.
    return {
        "name": name[:300] if isinstance(name, str) else None,
        "class": text(raw.get("class")),
        **_numbers_of(raw, "count", "seconds"),
    }


def _cause(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": text(raw.get("kind")),
        "rank": whole(raw.get("rank")),
        "seconds": number(raw.get("seconds")),
        "sentence": text(raw.get("sentence")),
    }


def _predicted(raw: Any) -> dict[str, Any] | None:
    seconds = positive(table(raw).get("seconds"))
    return None if seconds is None else {"seconds": seconds, "shares": numbers(raw.get("shares"))}


def _memory(raw: Any) -> list[dict[str, Any]]:
    ranks = [
        {
            "rank": whole(entry.get("rank")),
            "measure": text(entry.get("measure")),
            "steps": [
                {
                    "step": whole(step.get("step")),
                    "phases": [
                        {"phase": text(phase.get("phase")), **_numbers_of(phase, "peak_bytes", "end_bytes")}
                        for phase in tables(step.get("phases"))[:50]
                        if text(phase.get("phase")) and positive(phase.get("peak_bytes"))
                    ],
                }
                for step in tables(entry.get("steps"))[:MOST_STEPS]
                if whole(step.get("step")) is not None
            ],
        }
        for entry in tables(raw)[:MOST_RANKS]
        if whole(entry.get("rank")) is not None
    ]
    return sorted(ranks, key=lambda entry: entry["rank"] or 0)
