"""Files that may be half-written, broken, hostile or huge: what can be read of them, and a sentence for the rest."""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from torchlayout.errors import InputError
from torchlayout.files import parse_toml

T = TypeVar("T")

MIB = 2**20
MOST_BYTES = 64 * MIB
LARGEST = 1e300  # beyond it JavaScript has no number
LONGEST_TEXT = 2000


def missing(path: Path) -> bool:
    """Whether there is no such file; one that may not be looked at is there, and reading it says why it cannot be."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open; raises InputError for all else, as well where reading it fails inside the block."""
    try:
        # A pipe is not waited for, neither here nor by a read.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"{path.name} is no regular file")
            yield file
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path.name} ends early or is damaged: {error}") from error


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """What a file holds, unpacked where its name ends in .gz; raises InputError where it cannot be read or is huge."""
    with opened(path) as file:
        content = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InputError(f"{path.name} is not read: it holds more than {most_bytes // MIB} MiB")
    return content


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """The value in a JSON file, gzip'd where its name ends so; raises InputError where there is none."""
    content = read_bytes(path, most_bytes)
    try:
        return json.loads(content, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not JSON: {error}") from error


def read_toml(path: Path, most_bytes: int = MIB) -> dict[str, Any]:
    """The tables of a TOML file; raises InputError where there are none."""
    content = read_bytes(path, most_bytes)
    try:
        return parse_toml(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not TOML: {error}") from error


def number(value: Any) -> float | None:
    """A finite number, or None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -LARGEST < value < LARGEST else None


def positive(value: Any) -> float | None:
    """A number above 0."""
    found = number(value)
    return found if found is not None and found > 0 else None


def whole(value: Any) -> int | None:
    """A number without a fraction, that JavaScript holds exactly."""
    found = number(value)
    return int(found) if found is not None and found == math.floor(found) and abs(found) < 2**53 else None


def text(value: Any) -> str | None:
    """A text that is not too long to show."""
    return value if isinstance(value, str) and len(value) <= LONGEST_TEXT else None


def table(value: Any) -> dict[str, Any]:
    """A JSON object; everything else is an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A JSON array; everything else is an empty one."""
    return value if isinstance(value, list) else []


def tables(value: Any) -> list[dict[str, Any]]:
    """The objects of a JSON array."""
    return [item for item in items(value) if isinstance(item, dict)]


def numbers(value: Any) -> dict[str, float]:
    """The entries of a JSON object that are numbers and not negative."""
    found = {key: number(item) for key, item in table(value).items()}
    return {key: item for key, item in found.items() if item is not None and item >= 0}


def finite(value: Any) -> Any:
    """A value for JSON, with null for each number in it that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


class Cache:
    """What was made of a file, until the file changes; the least recently used goes first.

    That a file is broken is kept too: each run of a study would read a broken report again.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._made: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        # One maker at a time: two readers of one large timeline need no two of them in memory.
        self._lock = threading.Lock()

    def get(self, path: Path, make: Callable[..., T], *arguments: Hashable) -> T:
        """What `make` makes of the file and the arguments."""
        with self._lock:
            version = _version(path)
            name = (path, make.__qualname__, arguments)
            known = self._made.get(name)
            if known is None or known[0] != version:
                known = self._made[name] = (version, _made(make, path, *arguments))
            self._made.move_to_end(name)
            while len(self._made) > self.most:
                self._made.popitem(last=False)
        if isinstance(known[1], InputError):
            raise InputError(*known[1].problems)
        return known[1]  # type: ignore[no-any-return]


def _made(make: Callable[..., T], path: Path, *arguments: Hashable) -> T | InputError:
    try:
        return make(path, *arguments)
    except InputError as error:
        if isinstance(error.__cause__, OSError):
            raise  # it may pass without a change of the file
        return InputError(*error.problems)  # without the traceback, which holds what was read


def _version(path: Path) -> Hashable:
    try:
        facts = path.stat()
    except (OSError, ValueError):
        return None
    return facts.st_mtime_ns, facts.st_size
