"""The traces of a run of this project, and what its files tell of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torchlayout.config import Config
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.model.count import flops_per_token
from torchlayout.records import RunDirectory
from torchlayout.trace.breakdown import Known
from torchlayout.trace.predict import predicted
from torchlayout.trace.read import whole

# Steps of which the first are slow whatever the layout; thousands of lines of a long run are enough.
WARMUP_STEPS = 2
LAST_BYTES = 2**22


@dataclass(frozen=True)
class Window:
    """Traces of the same steps: where they are, and what is known of their run. run: None for another's traces."""

    source: Path
    known: Known
    run: RunDirectory | None = None


def windows(path: Path, step: int | None = None) -> list[Window]:
    """The windows of a run directory, in order, or the one that can hold a step; any other folder or file is one.

    Raises InputError for what isn't there, and for a run without traces.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; name a run, a folder with traces, or one trace")
    if path.is_dir() and path.resolve().name == "traces" and any(path.glob("step_*")):
        path = path.resolve().parent
    run = RunDirectory(path)
    around = path.resolve().parent  # also for one that is named `.`
    if path.is_dir() and around.name == "traces":
        run = RunDirectory(around.parent)
        return [Window(path, _known(run, path), run) if run.config_path.exists() else Window(path, Known())]
    if not run.config_path.exists() and not run.traces_path.is_dir():
        return [Window(path, Known())]
    folders = run.trace_windows()
    if not folders:
        raise InputError(f"the run {path} has no traces; set profile.steps = 3, say, and run it again")
    firsts = list(folders)
    if step is not None:
        firsts = [max((first for first in firsts if first <= step), default=firsts[0])]
    return [Window(folders[first], _known(run, folders[first]), run) for first in firsts]


def _known(run: RunDirectory, folder: Path) -> Known:
    memory = [document for file in sorted(folder.glob("rank*.memory.json")) if (document := _read(file)) is not None]
    memory.sort(key=lambda document: whole(document.get("rank")))
    try:
        config, facts = Config.load(run.config_path), run.read_run()
        layout = Layout.parse(str(facts.get("layout")))
    except InputError as error:
        return Known(memory=memory, notes=[f"what the run was is not known: {error}"])
    profiled = range(config.profile.start_step, config.profile.start_step + config.profile.steps)
    tokens = config.batch.global_size * config.data.sequence_length
    device = facts.get("hardware")
    foretold, note = predicted(config, layout, device.get("device_name") if isinstance(device, dict) else None)
    return Known(
        layout=str(layout),
        flops_per_step=tokens * flops_per_token(config.model, config.data.sequence_length, "exact"),
        untraced_seconds=_untraced_seconds(run, profiled),
        predicted=foretold,
        memory=memory,
        notes=[note] if note else [],
    )


def _untraced_seconds(run: RunDirectory, profiled: range) -> float | None:
    steps = run.metrics(last_bytes=LAST_BYTES)
    usual = [
        step["seconds"]
        for step in steps
        if step["step"] > WARMUP_STEPS and step["step"] not in profiled and isinstance(step.get("seconds"), float)
    ]
    return median(usual) if usual else None


def _read(file: Path) -> Mapping[str, Any] | None:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
