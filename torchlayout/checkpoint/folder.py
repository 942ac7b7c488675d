"""The folders of checkpoints: committed whole, verified, and removed when newer ones stand."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torchlayout.checkpoint.index import Index
from torchlayout.errors import InputError
from torchlayout.files import write_atomically

INDEX, COMMITTED = "index.json", "COMMITTED"
NAME = re.compile(r"step_(\d+)")
READ_AT_ONCE = 2**24


@dataclass(frozen=True)
class Checkpoint:
    """A folder that was committed once; only `faults` says whether it still is as it was written."""

    path: Path

    @property
    def step(self) -> int:
        match = NAME.fullmatch(self.path.name)
        return int(match[1]) if match else int(self.index.state["step"])

    @cached_property
    def files(self) -> dict[str, dict[str, Any]]:
        """{"bytes", "sha256"} of each file; raises InputError where COMMITTED is missing or damaged."""
        try:
            committed = json.loads((self.path / COMMITTED).read_bytes())
            files: dict[str, dict[str, Any]] = committed["files"]
            sound = committed["sha256"] == _digest_of_list(files)
        except FileNotFoundError as error:
            raise InputError(f"{self.path} is no committed checkpoint: it has no {COMMITTED}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path / COMMITTED} cannot be read: {error}") from error
        if not sound or INDEX not in files:
            raise InputError(f"{self.path / COMMITTED} is damaged: its own checksum does not fit")
        return files

    @cached_property
    def index(self) -> Index:
        """What the checkpoint holds; raises InputError where index.json is not what was committed."""
        fault = self.fault(INDEX)
        if fault is not None:
            raise InputError(fault)
        try:
            return Index.from_json((self.path / INDEX).read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path / INDEX} is no index that this version reads: {error}") from error

    @property
    def bytes(self) -> int:
        return sum(int(facts["bytes"]) for facts in self.files.values())

    def fault(self, name: str) -> str | None:
        """What is wrong with one file, or None; reads it whole."""
        expected, path = self.files[name], self.path / name
        try:
            size = path.stat().st_size
            if size != expected["bytes"]:
                return f"{path} has {size:,} bytes, {expected['bytes']:,} were written"
            if file_sha256(path) != expected["sha256"]:
                return f"{path} is not what was written: its SHA-256 differs"
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror or error}"
        return None

    def faults(self, share: int = 0, shares: int = 1) -> Iterator[str]:
        """What is wrong with the share-th of `shares` parts of the files, so that ranks can divide the reading."""
        try:
            names = sorted(self.files)[share::shares]
        except InputError as error:
            yield str(error)
            return
        yield from filter(None, map(self.fault, names))


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run: RUN/checkpoints."""

    path: Path

    def committed(self) -> list[Checkpoint]:
        """Those with the final name, oldest first; damaged ones too."""
        if not self.path.is_dir():
            return []
        found = [Checkpoint(path) for path in self.path.iterdir() if NAME.fullmatch(path.name) and path.is_dir()]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def begin(self, step: int) -> Path:
        """An empty folder, under a hidden name, to write step `step` into."""
        self.discard_unfinished()
        folder = self.unfinished(step)
        folder.mkdir(parents=True)
        return folder

    def unfinished(self, step: int) -> Path:
        """Where step `step` is until it is committed."""
        return self.path / f".step_{step}.saving"

    def discard_unfinished(self) -> None:
        """Remove what saves and removals that were cut off have left."""
        for left in self.path.glob(".step_*"):
            shutil.rmtree(left)

    def finish(self, folder: Path, step: int, keep: int) -> Checkpoint:
        """Give a committed folder its name, durably, then remove all but the newest `keep`."""
        final = self.path / f"step_{step}"
        if final.exists():  # a damaged one: the run went on from an older checkpoint, and is here again
            self._remove(final)
        folder.rename(final)
        sync_directory(self.path)
        for old in self.committed()[:-keep]:
            self._remove(old.path)
        return Checkpoint(final)

    def _remove(self, path: Path) -> None:
        hidden = path.with_name(f".{path.name}.removing")
        path.rename(hidden)  # at once, so that no half-removed folder has a checkpoint's name
        shutil.rmtree(hidden)


def commit(folder: Path, index: Index, files: dict[str, dict[str, Any]]) -> None:
    """Write index.json, then COMMITTED over it and `files` ({"bytes", "sha256"} by name), and flush all to disk."""
    write_atomically(folder / INDEX, index.to_json())
    written = (folder / INDEX).read_bytes()
    files = files | {INDEX: {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}}
    sync_directory(folder)
    committed = {"files": files, "sha256": _digest_of_list(files)}
    write_atomically(folder / COMMITTED, json.dumps(committed, indent=1) + "\n")
    sync_directory(folder)


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()


def sync_directory(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest_of_list(files: dict[str, dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
