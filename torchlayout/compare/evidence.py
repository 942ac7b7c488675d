"""What a run left behind, read once: the evidence of the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlayout.compare.study import flat
from torchlayout.errors import InputError
from torchlayout.files import read_toml
from torchlayout.records import RunDirectory

# Keys of a run's config.toml that differ from layout to layout, or from run to run, and mean no unfairness.
OF_THE_LAYOUT = ("layout.", "kernels.attention", "kernels.norm", "kernels.compile", "run.name", "run.directory")


@dataclass(frozen=True)
class Evidence:
    """A finished run: facts of run.json, steps of metrics.jsonl, settings of config.toml with dotted keys."""

    label: str
    repeat: int
    facts: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.label}, repeat {self.repeat}"


def gather(label: str, repeat: int, directory: Path) -> Evidence:
    """The evidence in a run directory; raises InputError where run.json or config.toml cannot be read."""
    files = RunDirectory(directory)
    steps = tuple(files.metrics())
    if not steps:
        raise InputError(f"{directory} holds no steps of a run")
    settings = {
        key: value for key, value in flat(read_toml(files.config_path)).items() if not key.startswith(OF_THE_LAYOUT)
    }
    return Evidence(label, repeat, files.read_run(), steps, settings)
