"""What is prepared: files found under the sources, cut into units of work that depend on nothing else."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchlayout.data.parquet import row_groups
from torchlayout.errors import InputError

TEXT = (".txt", ".text", ".md", ".rst", ".tex", ".py")
JSON_LINES = (".jsonl", ".ndjson")
COMPRESSED = (".gz", ".zst")
PARQUET = ".parquet"
_LEGAL = f"{' '.join(TEXT + JSON_LINES)} (each also with {' or '.join(COMPRESSED)}) and {PARQUET}"
# Units are small enough to feed every process of a small corpus, and few enough files for a large one.
_SMALLEST, _LARGEST, _UNITS = 2 * 2**20, 2**30, 256


@dataclass(frozen=True)
class Source:
    """A file to prepare. `name` is stable when the whole is moved; `kind` is text, jsonl or parquet."""

    path: str
    name: str
    kind: str
    compression: str  # "", ".gz" or ".zst"
    size: int
    modified: int  # nanoseconds, as the file system says


@dataclass(frozen=True)
class Piece:
    """Part of a source: bytes [start, stop) widened to whole lines, or row groups [start, stop) of a Parquet file."""

    source: Source
    start: int
    stop: int
    last: bool  # whether the source ends with it
    size: int  # bytes it counts for in the progress


Unit = tuple[Piece, ...]


def kind_of(name: str) -> tuple[str, str] | None:
    """(kind, compression) that the name of a file says, or None."""
    lower = name.lower()
    if lower.endswith(PARQUET):
        return "parquet", ""
    stem, compression = next(((lower.removesuffix(c), c) for c in COMPRESSED if lower.endswith(c)), (lower, ""))
    if stem.endswith(TEXT):
        return "text", compression
    if stem.endswith(JSON_LINES) or (compression and stem.endswith(".json")):
        return "jsonl", compression  # published corpora name compressed JSON lines .json.gz
    return None


def find(names: Sequence[str]) -> list[Source]:
    """The files of all sources in the order given, those of a directory sorted by their relative paths.

    Raises InputError for every source that is missing, unreadable, of unknown extension, or without a known file.
    """
    found: list[Source] = []
    problems: list[str] = []
    for name in names:
        path = Path(name)
        try:
            if path.is_dir():
                inside = _inside(path)
                found += inside
                if not inside:
                    problems.append(f"source {name} holds no file of a known kind; legal: {_LEGAL}")
            elif not path.exists():
                problems.append(f"source {name} does not exist")
            elif kind_of(path.name) is None:
                problems.append(f"source {name} has an unknown extension {path.suffix!r}; legal: {_LEGAL}")
            else:
                path.open("rb").close()
                found.append(_source(path, path.name))
        except OSError as error:
            problems.append(f"source {error.filename or name} cannot be read: {error.strerror}")
    if problems:
        raise InputError(*problems)
    return found


def python_library() -> tuple[list[Source], int]:
    """The text of the installed Python's standard library, and how many of its files cannot be read."""
    root = Path(sysconfig.get_path("stdlib"))
    found, unreadable = [], 0
    for file in _walk(root, left_out=("site-packages", "dist-packages", "__pycache__")):
        if file.suffix == ".py":
            try:
                file.open("rb").close()
                found.append(_source(file, f"python-library/{file.relative_to(root).as_posix()}"))
            except OSError:
                unreadable += 1
    return found, unreadable


def plan(sources: Sequence[Source]) -> list[Unit]:
    """The units of work: every piece of every source once, in order; the same for any number of processes."""
    target = min(max(sum(source.size for source in sources) // _UNITS, _SMALLEST), _LARGEST)
    units: list[Unit] = []
    gathered: list[Piece] = []
    size = 0
    for piece in (piece for source in sources for piece in _pieces(source, target)):
        if gathered and size + piece.size > target:
            units.append(tuple(gathered))
            gathered, size = [], 0
        gathered.append(piece)
        size += piece.size
    return [*units, tuple(gathered)] if gathered else units


def _pieces(source: Source, target: int) -> Iterator[Piece]:
    extent, count = source.size, max(1, -(-source.size // target))
    if source.kind == "parquet":
        extent = row_groups(source.path)
        count = max(1, min(count, extent))
    elif source.compression:
        count = 1  # compressed streams have no middle to start from
    for i in range(count):
        size = source.size * (i + 1) // count - source.size * i // count
        yield Piece(source, extent * i // count, extent * (i + 1) // count, i == count - 1, size)


def _source(path: Path, name: str) -> Source:
    kind, compression = kind_of(path.name) or ("", "")
    status = path.stat()
    return Source(str(path.absolute()), name, kind, compression, status.st_size, status.st_mtime_ns)


def _inside(directory: Path) -> list[Source]:
    base = directory.absolute().name
    known = [file for file in _walk(directory) if kind_of(file.name) is not None]
    for file in known:
        file.open("rb").close()
    return [_source(file, f"{base}/{file.relative_to(directory).as_posix()}") for file in known]


def _walk(root: Path, left_out: Sequence[str] = ()) -> list[Path]:
    """All files below `root` by sorted relative path; hidden ones and folders named in `left_out` are skipped."""
    files: list[Path] = []
    for folder, inner, names in os.walk(root, onerror=_raise):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in left_out]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(files, key=lambda file: file.relative_to(root).as_posix())


def _raise(error: OSError) -> None:
    raise error
