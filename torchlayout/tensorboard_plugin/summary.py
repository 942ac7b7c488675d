"""A run as a row of the tab, in the form that a layout has in report.json, so that the same table shows both."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchlayout.errors import InputError
from torchlayout.files import read_toml
from torchlayout.layout import Layout
from torchlayout.layout.family import family
from torchlayout.tensorboard_plugin.breakdown import read_brief
from torchlayout.tensorboard_plugin.metrics import read_figures
from torchlayout.tensorboard_plugin.read import (
    Cache,
    number,
    read_json,
    table,
    tables,
    text,
    whole,
)
from torchlayout.tensorboard_plugin.runs import Run

T = TypeVar("T")

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
    warmup = study["warmup_steps"] if study else WARMUP_STEPS
    traced = cache.get(run.path / "config.toml", _traced)
    figures = cache.get(run.path / "metrics.jsonl", read_figures, warmup, traced)
    windows = run.windows
    found = _analysis(run, windows, cache, notes)
    analysis = found or {}
    label = text(facts.get("layout")) or analysis.get("layout") or (run.path.parent.name if run.study else None)
    axes = _axes(label)
    status, reason = _status(facts, said, figures["steps"], run.path)
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
        **figures,
        "parity": said.get("parity"),
        "fair": said.get("fair"),
        "shares": analysis.get("mean") or None,
        "predicted": {"step_seconds": predicted["seconds"]} if predicted else None,
        "causes": analysis.get("causes", []),
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


def _axes(label: str | None) -> dict[str, Any]:
    try:
        return dataclasses.asdict(Layout.parse(label)) if label else {}
    except (InputError, ValueError):
        return {}


def _status(facts: dict[str, Any], said: dict[str, Any], steps: int | None, path: Path) -> tuple[str, str | None]:
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
        if path.exists() and (found := _read(cache, path, read_brief, notes)) is not None:
            return found
    return None
