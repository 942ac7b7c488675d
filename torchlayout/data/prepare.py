"""Text to a corpus: in parallel, resumable, and the same bytes whatever happened on the way.

The work is cut into units that depend on the sources alone; each becomes one token file, which is there whole or
not at all; the manifest comes last. `recipe.json` and `sources.list` say what a directory is being made from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from torchlayout.data import pool, read
from torchlayout.data.corpus import Manifest
from torchlayout.data.files import remove_halves
from torchlayout.data.recipe import Recipe, claim
from torchlayout.data.shard import ShardWriter, read_header
from torchlayout.data.sources import Piece, Source, Unit, find, plan, python_library
from torchlayout.data.tokenizer import Tokenizer, load_tokenizer
from torchlayout.errors import InputError

Report = Callable[[int, int], None]  # (source bytes done, source bytes in all); first what is kept
_BATCH = 2**20  # characters tokenized at a time


@dataclass(frozen=True)
class Prepared:
    """What a preparation did: the corpus as it is now, and how much of it was there before."""

    directory: Path
    manifest: Manifest
    kept: int  # token files that were there already
    unreadable: int  # files of the Python library that were left out


@dataclass(frozen=True)
class Job:
    """What a worker process must know."""

    directory: Path
    tokenizer: str
    eos: str | None
    text_field: str


def prepare(
    sources: Sequence[str],
    out: str | Path,
    *,
    tokenizer: str = "bytes",
    eos: str | None = None,
    text_field: str = "text",
    library: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    report: Report = lambda done, total: None,
) -> Prepared:
    """Make the corpus `out` from files and directories (and, with `library`, Python's standard library).

    Token files that are there from an earlier run with the same input are kept. Raises InputError for everything
    wrong with the input, for a directory that holds a corpus of other input, and for a full disk.
    """
    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers} must be at least 1")
    if not sources and not library:
        raise InputError("nothing to prepare: give a SOURCE (a file or a directory) or --python-library")
    made = load_tokenizer(tokenizer, eos)
    found = find(sources)
    books, unreadable = python_library() if library else ([], 0)
    found += books
    if not any(source.size for source in found):
        raise InputError(f"the corpus would be empty: all {len(found)} source files are empty")
    units = plan(found)
    directory = Path(out)
    job = Job(directory, tokenizer, eos, text_field)
    with claim(directory, Recipe.of(made, text_field, found), found, made, overwrite):
        kept = _run(job, units, workers or pool.cores(), report)
        headers = [read_header(directory / _name(number)) for number in range(len(units))]
        manifest = Manifest.of(made.name, [_name(number) for number in range(len(units))], headers)
        if not manifest.documents:
            raise InputError(f"the corpus would be empty: no text in {len(found)} source files")
        manifest.write(directory)
    return Prepared(directory, manifest, kept, unreadable)


def _name(number: int) -> str:
    return f"shard-{number:05d}.tokens"


def _run(job: Job, units: Sequence[Unit], workers: int, report: Report) -> int:
    """Make the token files that are not there yet; returns how many are."""
    sizes = [sum(piece.size for piece in unit) for unit in units]
    pending = [number for number in range(len(units)) if not _is_finished(job.directory / _name(number))]
    total = sum(sizes)
    done = total - sum(sizes[number] for number in pending)
    report(done, total)

    def advance(size: int) -> None:
        nonlocal done
        done += size
        report(done, total)

    tasks = [(number, units[number]) for number in pending]
    try:
        with closing(pool.run(tasks, partial(_start, job), workers, advance)) as finished:
            for _ in finished:
                pass
    finally:
        remove_halves(job.directory)
    return len(units) - len(pending)


def _is_finished(path: Path) -> bool:
    try:
        read_header(path)
    except InputError:
        return False
    return True


def _start(job: Job) -> pool.Work[tuple[int, Unit], int]:
    """In a worker process: load the tokenizer once, then make a token file for each unit."""
    tokenizer = load_tokenizer(job.tokenizer, job.eos)

    def work(task: tuple[int, Unit], advance: pool.Advance) -> int:
        number, unit = task
        path = job.directory / _name(number)
        with ShardWriter(path, tokenizer.vocabulary, tokenizer.eos, tokenizer.identity) as shard:
            replaced = empty = 0
            for piece in unit:
                counts = _tokenize(piece, job.text_field, tokenizer, shard, advance)
                replaced, empty = replaced + counts[0], empty + counts[1]
            shard.finish(sum(piece.size for piece in unit), replaced, empty)
        return number

    return work


def _tokenize(
    piece: Piece, field: str, tokenizer: Tokenizer, shard: ShardWriter, advance: pool.Advance
) -> tuple[int, int]:
    """Append a piece to a token file; returns (invalid UTF-8 sequences replaced, empty documents left out)."""
    _check_unchanged(piece.source)
    reported = replaced = empty = 0
    eos = np.array([tokenizer.eos], dtype=shard.dtype)
    begun = piece.start > 0 and piece.source.kind == "text"  # the document began in an earlier piece
    for batch in _batches(read.texts(piece, field)):
        parts, ends = [], 0
        for text, ids in zip(batch, tokenizer.encode([text.text for text in batch]), strict=True):
            parts.append(ids)
            begun = begun or len(ids) > 0
            if text.ends and begun:
                parts.append(eos)
                ends += 1
            empty += text.ends and not begun
            begun = begun and not text.ends
            replaced += text.replaced
        shard.write(np.concatenate(parts), ends)
        read_now = min(batch[-1].read, piece.size)
        advance(read_now - reported)
        reported = read_now
    advance(piece.size - reported)
    _check_unchanged(piece.source)
    return replaced, empty


def _batches(texts: Iterable[read.Text]) -> Iterable[list[read.Text]]:
    batch: list[read.Text] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text.text) + 64  # empty texts take memory too
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_unchanged(source: Source) -> None:
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise InputError(f"source {source.path} vanished while it was prepared: {error.strerror}") from error
    if (status.st_size, status.st_mtime_ns) != (source.size, source.modified):
        raise InputError(f"source {source.path} changed while it was prepared; run the same command with --overwrite")
