"""What a study has done so far: one record a run, in study.json, replaced whole after every change."""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlayout.errors import InputError
from torchlayout.files import read_text, write_atomically

VERSION = 1
STATUSES = ("pending", "running", "ok", "oom", "timeout", "failed", "skipped")
RESULTS = ("ok", "oom", "timeout")
"""What `--resume` does not do again; a crash may have been anything, so it is tried again."""


@dataclass(frozen=True)
class RunRecord:
    """One run of one layout; directory relative to the study's, seconds of wall clock, mark of its processes."""

    label: str
    repeat: int
    status: str = "pending"
    reason: str | None = None
    exit_code: int | None = None
    seconds: float | None = None
    mark: str | None = None

    @property
    def directory(self) -> str:
        """The run's directory, relative to the study's."""
        return f"{self.label}/repeat_{self.repeat}"

    @property
    def log(self) -> str:
        """The log of its processes, relative to the study's directory."""
        return f"{self.directory}/logs/torchrun.log"


class StudyState:
    """The runs of a study, in the order in which they are run."""

    def __init__(self, path: Path, created: str, runs: Iterable[RunRecord]) -> None:
        self.path, self.created = path, created
        self._runs = {(run.label, run.repeat): run for run in runs}
        self._repeats: dict[str, list[int]] = {}
        for label, repeat in sorted(self._runs):
            self._repeats.setdefault(label, []).append(repeat)

    @classmethod
    def new(cls, path: Path, runs: Iterable[RunRecord]) -> StudyState:
        """A study in which nothing has been run."""
        return cls(path, datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), runs)

    @classmethod
    def read(cls, path: Path) -> StudyState:
        """The study in a file; raises InputError where there is none."""
        try:
            raw = json.loads(read_text(path))
            if raw["version"] != VERSION:
                raise InputError(f"{path} has version {raw['version']}; this program reads version {VERSION}")
            return cls(path, raw["created"], [RunRecord(**run) for run in raw["runs"]])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is not what a comparison writes: {error}") from error

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs."""
        return tuple(self._runs.values())

    def of(self, label: str) -> tuple[RunRecord, ...]:
        """The runs of one layout, by repeat."""
        return tuple(self._runs[label, repeat] for repeat in self._repeats.get(label, ()))

    def update(self, run: RunRecord, **changes: Any) -> RunRecord:
        """Changes a run, and the file."""
        changed = dataclasses.replace(run, **changes)
        self._runs[run.label, run.repeat] = changed
        self.write()
        return changed

    def write(self) -> None:
        """Writes the file whole."""
        raw: Mapping[str, Any] = {
            "version": VERSION,
            "created": self.created,
            "runs": [dataclasses.asdict(run) for run in self.runs],
        }
        write_atomically(self.path, json.dumps(raw, indent=1, allow_nan=False) + "\n")


@contextmanager
def only_driver(directory: Path) -> Iterator[None]:
    """Holds the study for this process; raises InputError where another one runs it. Death gives it free."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"{directory} is being run by another process; wait for it, or end it first") from error
        yield
