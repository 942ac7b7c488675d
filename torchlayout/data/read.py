"""The texts of a piece of a source, in bounded memory."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, cast

from torchlayout.data import parquet
from torchlayout.data.sources import Piece, Source
from torchlayout.errors import InputError

_BLOCK = 2**20
_LINE_LIMIT = 2**20  # where a plain text has no line end for so long, it may be cut inside a line


@dataclass(frozen=True)
class Text:
    """Part of a document, and whether the document ends with it."""

    text: str
    ends: bool
    read: int  # bytes of the source read since the piece began, for the progress
    replaced: int = 0  # invalid UTF-8 sequences that became U+FFFD


def texts(piece: Piece, field: str) -> Iterator[Text]:
    """The texts of a piece; `field` names the text of JSON lines and Parquet files.

    A plain file is one document, handed out in blocks of about a MiB that end with a line where they can.
    Raises InputError for damaged files, JSON lines that are none, and records without the field.
    """
    if piece.source.kind == "parquet":
        for raw, part in parquet.texts(piece.source.path, piece.start, piece.stop, field):
            yield _decoded(raw or b"", True, int(part * piece.size))
    elif piece.source.kind == "jsonl":
        yield from _json_lines(piece, field)
    else:
        yield from _plain(piece)


def _plain(piece: Piece) -> Iterator[Text]:
    with _opened(piece.source) as (file, raw):
        begin, end = _bounds(piece, file, _LINE_LIMIT)
        rest, first = b"", begin == 0
        left = end - begin if end is not None else None
        while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
            left = left - len(block) if left is not None else None
            rest += block.removeprefix(codecs.BOM_UTF8) if first else block  # a byte order mark is not text
            first = False
            cut = _cut(rest)
            yield _decoded(rest[:cut], False, raw.tell() - piece.start)
            rest = rest[cut:]
        yield _decoded(rest, piece.last, piece.size)


def _json_lines(piece: Piece, field: str) -> Iterator[Text]:
    with _opened(piece.source) as (file, raw):
        begin, end = _bounds(piece, file, -1)
        at = begin
        for number, line in enumerate(file, start=1):
            if end is not None and at >= end:
                return
            at += len(line)
            if line.strip():
                read = raw.tell() - piece.start if piece.source.compression else at - piece.start
                yield _record(line, field, read, partial(_place, piece, begin, number))


def _record(line: bytes, field: str, read: int, place: Callable[[], str]) -> Text:
    whole = _decoded(line, True, read)
    try:
        record = json.loads(whole.text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(f"{place()} is not valid JSON: {why}") from error
    if not isinstance(record, dict):
        raise InputError(f"{place()} is not a JSON object but a {type(record).__name__}")
    if field not in record:
        names = ", ".join(list(record)[:12]) or "none"
        raise InputError(f"{place()} has no field {field!r}; --text-field must name one of its fields: {names}")
    text = record[field]
    if text is not None and not isinstance(text, str):
        raise InputError(f"{place()}: field {field!r} is not text but a {type(text).__name__}")
    text, lone = _without_surrogates(text or "")
    return Text(text, True, read, whole.replaced + lone)


def _without_surrogates(text: str) -> tuple[str, int]:
    """The text with lone surrogates, which JSON can escape but UTF-8 cannot hold, replaced; and how many."""
    try:
        text.encode("utf-8")
        return text, 0
    except UnicodeEncodeError:
        clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return clean, clean.count("\ufffd") - text.count("\ufffd")


def _decoded(raw: bytes, ends: bool, read: int) -> Text:
    try:
        return Text(raw.decode("utf-8"), ends, read)
    except UnicodeDecodeError:
        text = raw.decode("utf-8", errors="replace")
        return Text(text, ends, read, text.count("\ufffd") - raw.count(b"\xef\xbf\xbd"))


def _cut(block: bytes) -> int:
    """Where to cut a block: after its last line, else after its last space, else before an incomplete character."""
    for end in (b"\n", b" "):
        if (at := block.rfind(end)) >= 0:
            return at + 1
    starts = (at for at in range(len(block) - 1, max(-1, len(block) - 5), -1) if _begins_character(block[at]))
    return next(starts, len(block))


def _begins_character(byte: int) -> bool:
    return byte & 0xC0 != 0x80  # UTF-8 marks the bytes that continue a character


def _bounds(piece: Piece, file: BinaryIO, limit: int) -> tuple[int, int | None]:
    """The bytes of the whole lines that begin in the piece; the file stands at the first. No end: all of it."""
    if piece.source.compression:
        return 0, None
    begin = _line_start(file, piece.start, limit)
    end = piece.source.size if piece.last else _line_start(file, piece.stop, limit)
    file.seek(begin)
    return begin, end


def _line_start(file: BinaryIO, at: int, limit: int) -> int:
    """The first start of a line at or after byte `at`; beyond `limit` bytes without one, the next character."""
    if at == 0:
        return 0
    file.seek(at - 1)
    line = file.readline(limit)
    if len(line) != limit or line.endswith(b"\n"):
        return file.tell()
    return at + next((i for i, byte in enumerate(line[1:5]) if _begins_character(byte)), 0)


def _place(piece: Piece, begin: int, number: int) -> str:
    """`line N of PATH`; lines before the piece are counted only now that somebody asks."""
    if begin:
        with open(piece.source.path, "rb") as file:
            while begin > 0 and (block := file.read(min(_BLOCK, begin))):
                number += block.count(b"\n")
                begin -= len(block)
    return f"line {number} of {piece.source.path}"


@contextmanager
def _opened(source: Source) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """(decompressed stream, the file under it); damage in the compression becomes a sentence."""
    with open(source.path, "rb") as raw:
        try:
            if source.compression == ".gz":
                yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)), raw
            elif source.compression == ".zst":
                yield _zstandard(source, raw), raw
            else:
                yield raw, raw
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"source {source.path} is damaged: {error}") from error
        except OSError as error:
            raise InputError(f"source {source.path} cannot be read: {error.strerror or error}") from error


def _zstandard(source: Source, raw: BinaryIO) -> BinaryIO:
    try:
        from torchlayout.data.zstd import ZstandardFile
    except ImportError as error:
        raise InputError(
            f"source {source.path} needs the package zstandard: pip install 'torchlayout[text]'"
        ) from error
    return io.BufferedReader(ZstandardFile(raw), _BLOCK)
