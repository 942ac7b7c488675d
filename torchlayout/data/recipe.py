"""What a directory is being made from, so that a later run can tell the same input from other input."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchlayout.data.corpus import MANIFEST
from torchlayout.data.files import refusing_full_disk, remove_halves
from torchlayout.data.sources import Source
from torchlayout.data.tokenizer import FileTokenizer, Tokenizer
from torchlayout.errors import InputError
from torchlayout.files import write_atomically

RECIPE, SOURCES = "recipe.json", "sources.list"  # no name that a source may have
_VERSION = 1  # of the cutting into units: another one must not continue a directory


@dataclass(frozen=True)
class Recipe:
    """Everything that the bytes of a corpus depend on."""

    version: int
    tokenizer: str
    tokenizer_sha256: str
    text_field: str
    files: int
    sources_sha256: str

    @classmethod
    def of(cls, tokenizer: Tokenizer, text_field: str, sources: Sequence[Source]) -> Recipe:
        """The recipe of these sources, known by name, size and time of change, under this tokenizer."""
        digest = hashlib.sha256(_listing(sources).encode()).hexdigest()
        return cls(_VERSION, tokenizer.name, tokenizer.identity.hex(), text_field, len(sources), digest)


@contextmanager
def claim(
    directory: Path, recipe: Recipe, sources: Sequence[Source], tokenizer: Tokenizer, overwrite: bool
) -> Iterator[None]:
    """Hold the directory for this recipe; raises InputError when it is made from other input, or in use.

    `overwrite` deletes a corpus of other input first.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"--out {directory} cannot be made a directory: {error.strerror}") from error
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"--out {directory} is being prepared by another process; wait for it") from error
        _settle(directory, recipe, sources, tokenizer, overwrite)
        yield
    except PermissionError as error:
        raise InputError(f"--out {directory} cannot be written: {error.strerror}") from error
    finally:
        os.close(held)


def _settle(directory: Path, recipe: Recipe, sources: Sequence[Source], tokenizer: Tokenizer, overwrite: bool) -> None:
    remove_halves(directory)
    other = _difference(directory, recipe, sources)
    if other and not overwrite:
        raise InputError(
            f"--out {directory} already holds a corpus of other input ({other}); choose another directory, "
            "or start over in this one with --overwrite"
        )
    if other:
        _clear(directory)
    with refusing_full_disk(directory):
        if isinstance(tokenizer, FileTokenizer):
            write_atomically(directory / tokenizer.name, tokenizer.text)
        write_atomically(directory / SOURCES, _listing(sources))
        write_atomically(directory / RECIPE, json.dumps(asdict(recipe), indent=1) + "\n")


def _clear(directory: Path) -> None:
    """Delete a corpus, its recipe last: until then the rest is known to be of other input."""
    names = [directory / MANIFEST, *sorted(directory.glob("shard-*.tokens")), directory / SOURCES, directory / RECIPE]
    for path in names:
        path.unlink(missing_ok=True)


def _difference(directory: Path, recipe: Recipe, sources: Sequence[Source]) -> str:
    """What the corpus in the directory was made from that this recipe is not; '' when it is the same or none."""
    if not (directory / MANIFEST).exists() and not any(directory.glob("shard-*.tokens")):
        return ""
    try:
        old: dict[str, Any] = dict(json.loads((directory / RECIPE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return f"its {RECIPE} is missing"
    except (ValueError, TypeError):
        return f"its {RECIPE} is damaged"
    new = asdict(recipe)
    changed = [key for key in new if old.get(key) != new[key]]
    if "sources_sha256" in changed:
        return _changed_source(directory, sources)
    if "tokenizer" in changed:
        return f"its tokenizer is {old.get('tokenizer')}, now it is {recipe.tokenizer}"
    if "tokenizer_sha256" in changed:
        return f"its {recipe.tokenizer} is another one, or its EOS another token"
    return "; ".join(f"its {key} is {old.get(key)!r}, now {new[key]!r}" for key in changed)


def _changed_source(directory: Path, sources: Sequence[Source]) -> str:
    try:
        lines = (directory / SOURCES).read_text(encoding="utf-8").splitlines()
        before = {record["name"]: record for record in map(json.loads, lines)}
    except (OSError, ValueError, KeyError, TypeError):
        return "its sources are others"
    now = {source.name: _record(source) for source in sources}
    if not now.keys() & before.keys():
        return f"{len(before)} source files, none of which is among those now"
    for verb, names in (("was added", now.keys() - before.keys()), ("is gone", before.keys() - now.keys())):
        if names:
            return f"source {min(names)} {verb}" + (f", and {len(names) - 1} more" if len(names) > 1 else "")
    changed = sorted(name for name in now if now[name] != before[name])
    return f"source {changed[0]} has changed" if changed else "its sources came in another order"


def _record(source: Source) -> dict[str, Any]:
    return {key: value for key, value in vars(source).items() if key != "path"}


def _listing(sources: Sequence[Source]) -> str:
    return "".join(json.dumps(_record(source)) + "\n" for source in sources)
