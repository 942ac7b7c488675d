"""metrics.jsonl as the figures of one row: medians over the steps that count."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from torchlayout.errors import InputError
from torchlayout.records import RunDirectory
from torchlayout.tensorboard_plugin.read import MIB, items, missing, number, opened, positive, whole

END_OF_FILE = MIB // 2
"""More than 500 steps of 8 ranks, enough for a median; a run of weeks has hundreds of MiB."""


def read_figures(path: Path, warmup: float, traced: range) -> dict[str, Any]:
    """What metrics.jsonl says; raises InputError where it is there and cannot be read."""
    if missing(path):
        return figures_of([], warmup, traced)
    try:
        with opened(path):  # a regular file, then, which RunDirectory does not ask
            return figures_of(RunDirectory(path.parent).metrics(last_bytes=END_OF_FILE), warmup, traced)
    except RecursionError as error:
        raise InputError(f"{path.name} is not JSON: {error}") from error


def figures_of(steps: Sequence[dict[str, Any]], warmup: float = 0, traced: Collection[int] = ()) -> dict[str, Any]:
    """Speed and memory, without the warm-up and the steps that were profiled."""
    # Of a run so short that nothing else is left, all of it counts.
    measured = [step for step in steps if step["step"] > warmup and step["step"] not in traced] or steps
    return {"steps": whole(steps[-1]["step"]) if steps else None, **_speed(measured), **_memory(measured)}


def _speed(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    step_seconds, data_seconds = _median(steps, "seconds"), _median(steps, "data_seconds")
    return {
        "step_seconds": _spread(step_seconds),
        "tokens_per_second": _spread(_median(steps, "tokens_per_second")),
        "tokens_per_second_per_device": _median(steps, "tokens_per_second_per_device"),
        "mfu": _median(steps, "mfu"),
        "hfu": _median(steps, "hfu"),
        "data_seconds_fraction": _quotient(data_seconds, step_seconds),
    }


def _memory(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the last step: peaks are maxima since the start."""
    last = steps[-1] if steps else {}
    by_rank = [number(peak) or 0 for peak in items(last.get("peak_memory_bytes_by_rank"))]
    peak = max(by_rank, default=0) or positive(last.get("peak_memory_bytes"))
    return {
        "peak_memory_bytes": peak,
        "peak_memory_rank": by_rank.index(peak) if peak in by_rank else None,
        "memory_by_rank": by_rank,
    }


def _median(steps: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [value for step in steps if (value := number(step.get(name))) is not None and value >= 0]
    return statistics.median(values) if values else None


def _quotient(part: float | None, total: float | None) -> float | None:
    return number(float(part) / float(total)) if total and part is not None else None


def _spread(value: float | None) -> dict[str, float] | None:
    return None if value is None else {"median": value, "low": value, "high": value}
