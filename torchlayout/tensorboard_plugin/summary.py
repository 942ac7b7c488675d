"""A run as a row of the tab, in the form that a layout has in report.json, so that the same table shows both."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchlayout.errors import InputError
from torchlayout.files import read_toml
from torchlayout.layout import Layout
from torchlayout.layout.family import family
from torchlayout.records import RunDirectory
from torchlayout.tensorboard_plugin.breakdown import read_breakdown
from torchlayout.tensorboard_plugin.read import (
    MIB,
    Cache,
    items,
    number,
    positive,
    read_json,
    table,
    tables,
    text,
    whole,
)
from torchlayout.tensorboard_plugin.runs import Run

T = TypeVar("T")

END_OF_METRICS = 2 * MIB
MOST_CAUSES = 5
WARMUP_STEPS = 2
"""Of a run that belongs to no study, which says how many there are."""
SILENT_SECONDS = 900
STATUSES = {"ok", "oom", "timeout", "failed", "skipped", "pending", "running"}


def row(run: Run, cache: Cache) -> dict[str, Any]:
    """Everything that the table shows of a run; what cannot be read is null, with a note."""
    notes: list[str] = []
    facts = _read(cache, run.path / "run.json", _facts, notes) or {}
    study = _read(cache, run.study / "report.json", _study, notes) if run.study else None
    said = _said(run, study)
    steps = cache.get(run.path / "metrics.jsonl", _steps)
    warmup = study["warmup_steps"] if study else WARMUP_STEPS
    traced = cache.get(run.path / "config.toml", _traced)
    measured = [step for step in steps if step["step"] > warmup and step["step"] not in traced] or steps
    windows = run.windows
    found = _analysis(run, windows, cache, notes)
    analysis = found or {}
    label = text(facts.get("layout")) or analysis.get("layout") or (run.path.parent.name if run.study else None)
    axes = _axes(label)
    status, reason = _status(facts, said, steps, run.path)
    predicted = analysis.get("predicted")
    return {
        "label": run.name,
        "layout": label,
        "axes": axes,
        "family": family(axes),
        "status": status,
        "reason": reason,
        "study": text(study["name"]) if study else None,
        "world": whole(facts.get("world")) or analysis.get("world"),
        "device": text(facts.get("device_name")) or analysis.get("device_name"),
        "steps": steps[-1]["step"] if steps else None,
        **_figures(measured, steps),
        "parity": said.get("parity"),
        "fair": said.get("fair"),
        "shares": analysis.get("mean") or None,
        "predicted": {"step_seconds": predicted["seconds"]} if predicted else None,
        "causes": [cause["sentence"] for cause in analysis.get("causes", [])][:MOST_CAUSES],
        "windows": windows,
        "analysed": found is not None,
        "command": f"torchlayout trace {shlex.quote(str(run.path))}",
        "notes": notes,
    }


def _read(cache: Cache, path: Path, make: Callable[[Path], T], notes: list[str]) -> T | None:
    try:
        return cache.get(path, make)
    except InputError as error:
        notes.append(str(error))
        return None


def _facts(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}  # made before run.json was, or just started
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise InputError(f"{path.name} does not hold one JSON object")
    return {key: raw.get(key) for key in ("layout", "world", "exit_reason", "device_name")}


def _traced(path: Path) -> range:
    """The steps that the configuration has profiled, which takes time that is not theirs."""
    try:
        section = table(read_toml(path).get("profile"))
    except InputError:
        return range(0)
    start, steps = whole(section.get("start_step")) or 0, whole(section.get("steps")) or 0
    return range(start, start + steps)


def _study(path: Path) -> dict[str, Any]:
    """What a report says of its runs: by directory, and by layout."""
    if not path.exists():
        raise InputError("the study has no report.json yet, so parity is not known: `torchlayout report` writes it")
    raw = table(read_json(path))
    about = table(raw.get("study"))
    runs: dict[str, dict[str, Any]] = {}
    for layout in tables(raw.get("layouts")):
        verdicts = {"parity": _parity(layout.get("parity")), "fair": _fair(layout.get("fair"))}
        for repeat in tables(layout.get("repeats")):
            if directory := text(repeat.get("directory")):
                runs[directory] = verdicts | {"status": repeat.get("status"), "reason": text(repeat.get("reason"))}
    return {"name": about.get("name"), "warmup_steps": number(about.get("warmup_steps")) or 0, "runs": runs}


def _said(run: Run, study: dict[str, Any] | None) -> dict[str, Any]:
    if study is None or run.study is None:
        return {}
    return table(study["runs"].get(run.path.relative_to(run.study).as_posix()))


def _parity(raw: Any) -> dict[str, Any] | None:
    if not isinstance(table(raw).get("within"), bool):
        return None
    names = ("loss_difference", "loss_step", "norm_difference", "norm_step", "tolerance", "norm_tolerance")
    return {"within": raw["within"]} | {name: number(raw.get(name)) for name in names}


def _fair(raw: Any) -> dict[str, bool | None] | None:
    terms = {name: equal for name, equal in table(raw).items() if equal is None or isinstance(equal, bool)}
    return terms or None


def _steps(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        return RunDirectory(path.parent).metrics(last_bytes=END_OF_METRICS)
    except (OSError, RecursionError):
        return []


def _figures(measured: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the steps after the warm-up; memory is a maximum since the start, so the last step has it."""
    by_rank = [number(peak) or 0 for peak in items(steps[-1].get("peak_memory_bytes_by_rank"))] if steps else []
    peak = max(by_rank, default=0) or (positive(steps[-1].get("peak_memory_bytes")) if steps else None)
    step_seconds, data_seconds = _median(measured, "seconds"), _median(measured, "data_seconds")
    return {
        "step_seconds": _spread(step_seconds),
        "tokens_per_second": _spread(_median(measured, "tokens_per_second")),
        "tokens_per_second_per_device": _median(measured, "tokens_per_second_per_device"),
        "mfu": _median(measured, "mfu"),
        "hfu": _median(measured, "hfu"),
        "peak_memory_bytes": peak,
        "peak_memory_rank": by_rank.index(peak) if peak in by_rank else None,
        "memory_by_rank": by_rank,
        "data_seconds_fraction": data_seconds / step_seconds if step_seconds and data_seconds is not None else None,
    }


def _median(steps: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [value for step in steps if (value := number(step.get(name))) is not None and value >= 0]
    return statistics.median(values) if values else None


def _spread(value: float | None) -> dict[str, float] | None:
    return None if value is None else {"median": value, "low": value, "high": value}


def _axes(label: str | None) -> dict[str, Any]:
    try:
        return dataclasses.asdict(Layout.parse(label)) if label else {}
    except (InputError, ValueError):
        return {}


def _status(
    facts: dict[str, Any], said: dict[str, Any], steps: Sequence[dict[str, Any]], path: Path
) -> tuple[str, str | None]:
    """How the run ended, by the study's word where there is one, and why."""
    if said.get("status") in STATUSES:
        return said["status"], said.get("reason")
    reason = text(facts.get("exit_reason"))
    if reason is None or reason == "done":
        return ("ok" if steps else "pending"), None if steps else "it has no steps yet"
    if reason == "running":
        silent = _silent_seconds(path)
        hours = f"nothing was written for {silent / 3600:.1f} hours" if silent > SILENT_SECONDS else None
        return "running", hours
    if reason.startswith("out of memory"):
        return "oom", reason
    return ("ok" if reason.startswith("stopped") else "failed"), reason


def _silent_seconds(path: Path) -> float:
    try:
        return time.time() - max(file.stat().st_mtime for file in (path / "run.json", path / "metrics.jsonl"))
    except OSError:
        return 0.0


def _analysis(run: Run, windows: Sequence[str], cache: Cache, notes: list[str]) -> dict[str, Any] | None:
    """The newest window that is analysed."""
    for window in reversed(windows):
        path = run.path / "traces" / window / "breakdown.json"
        if path.exists() and (found := _read(cache, path, read_breakdown, notes)) is not None:
            return found
    return None
