"""Files: read with one sentence for everything that can go wrong, written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from torchlayout.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_text(path: Path) -> str:
    """The text of a file; raises InputError where it cannot be read or is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{str(path)!r} is not a file name: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; raises InputError where it cannot be read or is not TOML."""
    try:
        return parse_toml(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    except RecursionError as error:
        raise InputError(f"{path} is not TOML that can be read: it is nested too deeply") from error
    except ValueError as error:  # the one that tomllib leaves to int()
        raise InputError(f"{path} is not TOML that can be read: a number has thousands of digits") from error


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; raises ValueError, or RecursionError where it is nested too deeply."""
    return tomllib.loads(text)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader, or the next start after a crash, sees the old one or the new one whole."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` once the block ends, and never half written."""
    check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        with half.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Raises InputError where a path has no name, or is something that a file must not take the place of."""
    if not path.name:
        raise InputError(f'"{path}" names no file; give the name of one')
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise InputError(f"{path} is {kind} and can't be written over; give the name of a file")
