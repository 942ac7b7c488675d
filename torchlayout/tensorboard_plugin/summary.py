"""A run as a row of the tab, in the form that a layout has in report.json, so that the same table shows both."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.layout.family import family
from torchlayout.tensorboard_plugin.breakdown import read_brief
from torchlayout.tensorboard_plugin.metrics import figures_of, read_figures
from torchlayout.tensorboard_plugin.read import (
    Cache,
    missing,
    number,
    read_json,
    read_toml,
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
FILES_OF_A_RUN = 8
"""Read for a row, at most in general: four, the analyses of its windows down to one that is sound, the report."""
LONGEST_ERROR = 300
STATUSES = {"ok", "oom", "timeout", "failed", "skipped", "pending", "running"}


def row(run: Run, cache: Cache) -> dict[str, Any]:
    """Everything that the table shows of a run; what cannot be read is null, with a note."""
    notes: list[str] = []
    try:
        return _blank(run, notes) | _known(run, cache, notes)
    except Exception as error:
        # Whatever a run's files hold costs its own row and none of the 2,000 others. Files are checked as they are
        # read, so this is for what nobody thought of; it is the one place that catches everything.
        notes.append(f"this run cannot be shown: {type(error).__name__}: {error}"[:LONGEST_ERROR])
        return _blank(run, notes) | {"reason": notes[-1]}


def _blank(run: Run, notes: list[str]) -> dict[str, Any]:
    """The row of a run of which nothing is known."""
    nothing = ("layout", "reason", "study", "world", "device", "parity", "fair", "shares", "predicted")
    return {
        **dict.fromkeys(nothing),
        "label": run.name,
        "axes": {},
        "family": family({}),
        "status": "failed",
        **figures_of([]),
        "causes": [],
        "windows": [],
        "analysed": False,
        "command": f"torchlayout trace {shlex.quote(str(run.path))}",
        "notes": notes,
    }


def _known(run: Run, cache: Cache, notes: list[str]) -> dict[str, Any]:
    facts = _read(cache, run.path / "run.json", _facts, notes) or {}
    study = _read(cache, run.study / "report.json", _study, notes) if run.study else None
    said = _said(run, study)
    warmup = study["warmup_steps"] if study else WARMUP_STEPS
    traced = _read(cache, run.path / "config.toml", _traced, notes) or range(0)
    figures = _read(cache, run.path / "metrics.jsonl", read_figures, notes, warmup, traced) or figures_of([])
    windows = _windows(run, notes)
    found = _analysis(run, windows, cache, notes)
    analysis = found or {}
    label = text(facts.get("layout")) or analysis.get("layout") or (run.path.parent.name if run.study else None)
    axes = _axes(label)
    status, reason = _status(facts, said, figures["steps"], run.path)
    predicted = analysis.get("predicted")
    return {
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
    }


def _read(cache: Cache, path: Path, make: Callable[..., T], notes: list[str], *arguments: Hashable) -> T | None:
    try:
        return cache.get(path, make, *arguments)
    except InputError as error:
        notes.append(str(error))
        return None


def _windows(run: Run, notes: list[str]) -> list[str]:
    try:
        return run.listed()
    except OSError as error:
        notes.append(f"traces cannot be read: {error.strerror}")
        return []


def _facts(path: Path) -> dict[str, Any]:
    if missing(path):
        return {}  # made before run.json was, or just started
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise InputError(f"{path.name} does not hold one JSON object")
    return {key: raw.get(key) for key in ("layout", "world", "exit_reason", "device_name")}


def _traced(path: Path) -> range:
    """The steps that the configuration has profiled, which takes time that is not theirs."""
    if missing(path):
        return range(0)
    section = table(read_toml(path).get("profile"))
    start, steps = whole(section.get("start_step")) or 0, whole(section.get("steps")) or 0
    return range(start, start + steps)


def _study(path: Path) -> dict[str, Any]:
    """What a report says of its runs: by directory, and by layout."""
    if missing(path):
        raise InputError("the study has no report.json yet, so parity is not known: `torchlayout report` writes it")
    raw = table(read_json(path))
    about = table(raw.get("study"))
    runs: dict[str, dict[str, Any]] = {}
    for layout in tables(raw.get("layouts")):
        verdicts = {"parity": _parity(layout.get("parity")), "fair": _fair(layout.get("fair"))}
        for repeat in tables(layout.get("repeats")):
            if directory := text(repeat.get("directory")):
                runs[directory] = verdicts | {
                    "status": text(repeat.get("status")),
                    "reason": text(repeat.get("reason")),
                }
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
        if not missing(path) and (found := _read(cache, path, read_brief, notes)) is not None:
            return found
    return None
