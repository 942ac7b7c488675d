"""Files that may be half-written, broken, hostile or huge: what can be read of them, and a sentence for the rest."""

from __future__ import annotations

import gzip
import json
import math
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from torchlayout.errors import InputError

T = TypeVar("T")

MIB = 2**20
MOST_BYTES = 64 * MIB
LARGEST = 1e300  # beyond it JavaScript has no number
LONGEST_TEXT = 2000


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """The value in a JSON file, gzip'd where its name ends so; raises InputError where there is none."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path.name} is no regular file")  # reading a pipe would never end
    try:
        with path.open("rb") as file:
            content = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(most_bytes + 1)
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path.name} ends early or is damaged: {error}") from error
    if len(content) > most_bytes:
        raise InputError(f"{path.name} is not read: it holds more than {most_bytes // MIB} MiB")
    try:
        return json.loads(content, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not JSON: {error}") from error


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


class Cache:
    """What was made of a file, until the file changes; the least recently used goes first."""

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
            if known is not None and known[0] == version:
                self._made.move_to_end(name)
                return known[1]  # type: ignore[no-any-return]
            made = make(path, *arguments)
            self._made[name] = (version, made)
            self._made.move_to_end(name)
            while len(self._made) > self.most:
                self._made.popitem(last=False)
            return made


def _version(path: Path) -> Hashable:
    try:
        facts = path.stat()
    except (OSError, ValueError):
        return None
    return facts.st_mtime_ns, facts.st_size
