"""metrics.jsonl as the figures of one row: medians over the steps that count."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchlayout.records import RunDirectory
from torchlayout.tensorboard_plugin.read import MIB, items, number, positive

END_OF_FILE = MIB // 2
"""More than 500 steps of 8 ranks, enough for a median; a run of weeks has hundreds of MiB."""


def read_figures(path: Path, warmup: float, traced: range) -> dict[str, Any]:
    """What metrics.jsonl says of speed and memory, without the warm-up and the steps that were profiled."""
    steps = _steps(path)
    # Of a run so short that nothing else is left, all of it counts.
    measured = [step for step in steps if step["step"] > warmup and step["step"] not in traced] or steps
    return {"steps": steps[-1]["step"] if steps else None, **_speed(measured), **_memory(measured)}


def _steps(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        return RunDirectory(path.parent).metrics(last_bytes=END_OF_FILE)
    except (OSError, RecursionError):
        return []


def _speed(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    step_seconds, data_seconds = _median(steps, "seconds"), _median(steps, "data_seconds")
    return {
        "step_seconds": _spread(step_seconds),
        "tokens_per_second": _spread(_median(steps, "tokens_per_second")),
        "tokens_per_second_per_device": _median(steps, "tokens_per_second_per_device"),
        "mfu": _median(steps, "mfu"),
        "hfu": _median(steps, "hfu"),
        "data_seconds_fraction": data_seconds / step_seconds if step_seconds and data_seconds is not None else None,
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


def _spread(value: float | None) -> dict[str, float] | None:
    return None if value is None else {"median": value, "low": value, "high": value}
