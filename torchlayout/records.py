"""The one reader and writer of a run's files: run.json and metrics.jsonl, always valid JSON."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchlayout.errors import InputError
from torchlayout.files import write_atomically

LOCK = ".lock"
WINDOW = re.compile(r"step_([0-9]{1,15})")


class RunDirectory:
    """The folder of one run: where its files are, and how they are read and written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.run_path = self.path / "run.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.tensorboard_path = self.path / "tensorboard"
        self.checkpoints_path = self.path / "checkpoints"
        self.traces_path = self.path / "traces"

    def trace_windows(self) -> dict[int, Path]:
        """The folders of traces by their first step; those that were set aside are none."""
        found = {
            int(name[1]): path for path in self.traces_path.glob("step_*") if (name := WINDOW.fullmatch(path.name))
        }
        return {first: found[first] for first in sorted(found)}

    def create(self) -> RunDirectory:
        """Makes the folder where it is not there yet; raises InputError where it cannot be made."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the run directory {self.path} cannot be made: {error.strerror}") from error
        return self

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out while this one writes here; raises InputError where another is in."""
        self.create()
        with (self.path / LOCK).open("a") as file:
            try:
                # A record lock, as forked workers inherit the other kind and outlive a killed process for seconds.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"another process is writing to {self.path}; wait for it, or choose another run.name"
                ) from error
            try:
                yield
            finally:
                if list(self.path.iterdir()) == [self.path / LOCK]:  # it was refused, and wrote nothing
                    shutil.rmtree(self.path, ignore_errors=True)

    def write_run(self, facts: dict[str, Any]) -> None:
        """Replaces run.json; a number that is not finite becomes null."""
        write_atomically(self.run_path, json.dumps(_finite(facts), indent=2, allow_nan=False) + "\n")

    def read_run(self) -> dict[str, Any]:
        """The facts in run.json; raises InputError where there are none."""
        try:
            facts = json.loads(self.run_path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{self.run_path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"{self.run_path} is not JSON: {error}") from error
        if not isinstance(facts, dict):
            raise InputError(f"{self.run_path} does not hold one JSON object")
        return facts

    def append(self, metrics: dict[str, Any]) -> None:
        """Adds one line to metrics.jsonl, in full precision, visible to readers at once.

        A number that is not finite becomes null, and the line says "non_finite": true.
        """
        record = _finite(metrics)
        if record != metrics:
            record["non_finite"] = True
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with self.metrics_path.open("ab+") as file:
            if file.tell() and not _ends_with_newline(file.fileno(), file.tell()):
                line = b"\n" + line  # a killed run left half a line, which must not swallow this one
            file.write(line)

    def keep_metrics_through(self, step: int) -> None:
        """Forgets steps after `step`, which are about to be done again."""
        if self.metrics_path.exists():
            kept = [json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step]
            write_atomically(self.metrics_path, "".join(kept))

    def metrics(self, last_bytes: int | None = None) -> list[dict[str, Any]]:
        """The records by step; of a step written twice (after a resume) the last one; a half-written line is none.

        With last_bytes only those at the end of the file, however long it is.
        """
        if not self.metrics_path.exists():
            return []
        by_step: dict[int, dict[str, Any]] = {}
        for line in _end(self.metrics_path, last_bytes).splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # half a line, left by a run that was killed while it wrote
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                by_step[record["step"]] = record
        return [by_step[step] for step in sorted(by_step)]


def _end(path: Path, most_bytes: int | None) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes) if most_bytes is not None else 0)
        return file.read()


def _ends_with_newline(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
