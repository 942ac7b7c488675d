"""Events out of a chrome trace, one after the other: a file of gigabytes never lies in memory as a whole."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from torchlayout.errors import InputError

CHUNK_BYTES = 2**22
# One value (an event, or an entry of the header) is never longer in a sound file.
LONGEST = 2**26
# In nanoseconds a time of the year 2116. With a base as large it is still an int64; what is larger is damage.
LARGEST = 2**62
BETWEEN = re.compile(r"[ \t\n\r,]*")
"""What stands between two events; matches anywhere."""
GZIP = b"\x1f\x8b"

Event = dict[str, Any]


def read_events(path: Path, header: dict[str, Any], take: Callable[[Event], None]) -> str | None:
    """Give each event of a trace to `take` and all else that the file says to `header`.

    Reads what torch.profiler writes (an object with `traceEvents`) and bare arrays, both also under gzip. A file that
    ends too early is read as far as it goes: the sentence that says so is returned, and None for a whole one.
    Raises InputError for a file that is no trace.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            with gzip.open(file) if packed else file as plain:
                return _Reader(path, plain).run(header, take)
    except (OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the trace {path} cannot be read: {said}") from error
    except RecursionError as error:
        raise InputError(f"{path} is no trace: it is nested too deeply") from error


class _Reader:
    """Decodes value after value at the front of a text that is filled up behind."""

    def __init__(self, path: Path, file: BufferedReader | gzip.GzipFile) -> None:
        self.path, self.file = path, file
        self.text, self.at, self.ended = "", 0, False
        self.cut_short: str | None = None
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        # Names of kernels hold whatever their compiler wrote, control characters too.
        self.decode = json.JSONDecoder(strict=False).raw_decode

    def run(self, header: dict[str, Any], take: Callable[[Event], None]) -> str | None:
        first = self.next_sign()
        if first == "[":
            self.events(take)
        elif first == "{":
            self.members(header, take)
        else:
            raise InputError(f"{self.path} is no trace: it holds no JSON object or array")
        return self.cut_short

    def members(self, header: dict[str, Any], take: Callable[[Event], None]) -> None:
        while (sign := self.next_sign()) != "}":
            if sign == "":
                self.end_early()
                return
            if sign == ",":
                continue
            self.at -= 1
            key = self.value()
            if key is None or self.next_sign() != ":":
                self.end_early()
                return
            if key == "traceEvents":
                opened = self.next_sign()
                if opened == "":
                    self.end_early()
                    return
                if opened != "[":
                    raise InputError(f"{self.path} is no trace: its traceEvents are no array")
                self.events(take)
            else:
                header[str(key)] = self.value()
            if self.cut_short:
                return

    def events(self, take: Callable[[Event], None]) -> None:
        """All elements up to the closing bracket."""
        decode, between = self.decode, BETWEEN.match
        while True:
            text, at = self.text, self.at
            try:
                while True:  # the hot loop: no call but the decoder's and the taker's
                    at = between(text, at).end()  # type: ignore[union-attr]
                    if text[at] == "]":
                        self.at = at + 1
                        return
                    event, at = decode(text, at)
                    if isinstance(event, dict):
                        take(event)
            except (IndexError, ValueError):
                self.at = at
                if not self.fill():
                    self.end_early()
                    return

    def value(self) -> Any:
        """The next value, None at an early end."""
        if self.next_sign() == "":
            self.end_early()
            return None
        self.at -= 1
        while True:
            try:
                value, end = self.decode(self.text, self.at)
                # A number at the very end may go on in the next chunk.
                if end < len(self.text) or self.ended:
                    self.at = end
                    return value
            except ValueError:
                pass
            if not self.fill() and self.ended:
                try:
                    value, self.at = self.decode(self.text, self.at)
                    return value
                except ValueError:
                    self.end_early()
                    return None

    def next_sign(self) -> str:
        """The next character that is no space, taken; empty at the end."""
        while True:
            while self.at < len(self.text):
                sign = self.text[self.at]
                self.at += 1
                if not sign.isspace():
                    return sign
            if not self.fill():
                return ""

    def fill(self) -> bool:
        """Read on, and forget what has been decoded; whether there is more."""
        if len(self.text) - self.at > LONGEST:
            raise InputError(f"{self.path} is no trace: what begins {self.text[self.at : self.at + 60]!r} is not JSON")
        more = ""
        while not more and not self.ended:  # a chunk may end in the middle of a character, and be no more than that
            chunk = self.chunk()
            self.ended = self.ended or not chunk
            more = self.utf8.decode(chunk, final=self.ended)
        self.text, self.at = self.text[self.at :] + more, 0
        return bool(more)

    def chunk(self) -> bytes:
        """The next bytes; of a compressed file that was cut off or damaged those before that."""
        parts: list[bytes] = []
        left = CHUNK_BYTES
        try:
            while left and (part := self.file.read1(left)):
                parts.append(part)
                left -= len(part)
        except (EOFError, OSError, zlib.error):
            self.ended = True
        return b"".join(parts)

    def end_early(self) -> None:
        self.cut_short = f"{self.path} ends in the middle of an event; what comes before was read"


def whole(value: object) -> int:
    """A number that a trace gives, as one or as text; 0 for one below, and for anything else."""
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 20 else 0
    return value if isinstance(value, int) and 0 <= value < LARGEST else 0


def trace_files(folder: Path) -> Iterator[Path]:
    """The traces of ranks in a folder, by name: torch.profiler's, and any other chrome traces where there are none."""
    usual = sorted([*folder.glob("*.pt.trace.json"), *folder.glob("*.pt.trace.json.gz")])
    others = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    yield from usual or [path for path in others if path.name not in OWN]


# What the analysis itself leaves in the folder.
OWN = ("breakdown.json", "timeline.json.gz", "merged.json.gz")
