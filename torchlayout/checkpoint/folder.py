"""The folders of checkpoints: committed whole, verified, and removed when newer ones stand."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torchlayout.checkpoint.index import Index
from torchlayout.errors import InputError
from torchlayout.files import write_atomically

INDEX, COMMITTED = "index.json", "COMMITTED"
NAME = re.compile(r"step_(0|[1-9]\d*)")
UNFINISHED = re.compile(r"\.step_\d+\.(saving|removing)")
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
            sound = committed["sha256"] == _digest_of_list(files) and all(map(_is_entry, files.items()))
        except FileNotFoundError as error:
            raise InputError(f"{self.path} is no committed checkpoint: it has no {COMMITTED}") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
            index = Index.from_json((self.path / INDEX).read_text(encoding="utf-8"))
            index.check(self.files)
            return index
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
        if share == 0 and self.fault(INDEX) is None and (fault := self.index_fault()) is not None:
            yield fault

    def index_fault(self) -> str | None:
        """What is wrong with what index.json says, though it is as it was written; or None."""
        try:
            step = self.index.state["step"]
        except (InputError, KeyError, TypeError) as error:
            return str(error)
        if NAME.fullmatch(self.path.name) and step != self.step:
            return f"{self.path} is named step_{self.step} and holds step {step}"
        return None


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run: RUN/checkpoints.

    passed_over: those found damaged when the run was continued, which are neither counted nor removed.
    """

    path: Path
    passed_over: frozenset[Path] = frozenset()

    def committed(self) -> list[Checkpoint]:
        """Those with the final name, oldest first; damaged ones too."""
        if not self.path.is_dir():
            return []
        found = [Checkpoint(path) for path in self.path.iterdir() if NAME.fullmatch(path.name) and path.is_dir()]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def without_passed_over(self, step: int) -> Checkpoints:
        """The same once the damaged checkpoint of a step is about to be replaced."""
        return replace(self, passed_over=self.passed_over - {self.path / f"step_{step}"})

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
        for left in self.path.iterdir() if self.path.is_dir() else ():
            if UNFINISHED.fullmatch(left.name):
                _delete(left)

    def finish(self, folder: Path, step: int) -> Checkpoint:
        """Give a committed folder its name, durably."""
        final = self.path / f"step_{step}"
        if os.path.lexists(final):  # a damaged one: the run went on from an older checkpoint, and is here again
            final.rename(_free_name(final))
        folder.rename(final)
        sync_directory(self.path)
        return Checkpoint(final)

    def prune(self, newest: int, keep: int) -> None:
        """Remove those before step `newest` that are not among the `keep` newest up to it."""
        older = [found for found in self.committed() if found.step < newest and found.path not in self.passed_over]
        for old in older[: max(0, len(older) - (keep - 1))]:
            hidden = old.path.with_name(f".{old.path.name}.removing")
            old.path.rename(hidden)  # at once, so that no half-removed folder has a checkpoint's name
            _delete(hidden)


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


def _is_entry(item: tuple[str, dict[str, Any]]) -> bool:
    name, facts = item
    plain = name == Path(name).name and name not in ("", "..")
    return plain and isinstance(facts["bytes"], int) and isinstance(facts["sha256"], str)


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged{number}") for number in ("", *map(str, range(2, 1000))))
    return next(name for name in names if not os.path.lexists(name))


def _delete(path: Path) -> None:
    """A folder and all in it; a link itself, not what it names."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)
