"""Finds run directories under TensorBoard's logdir: one of them, a folder of them, or a study."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from torchlayout.records import WINDOW

MOST_RUNS = 2000
MOST_FOLDERS = 20_000
MOST_ENTRIES = 20_000
DEEPEST = 6
SECONDS_KNOWN = 3.0
"""Requests of one click share a search."""
SKIPPED = {"checkpoints", "tensorboard", "report_tensorboard", "figures", "logs", "__pycache__", "node_modules"}


@dataclass(frozen=True)
class Run:
    """A run directory: its name in the tab, and the study that it belongs to, if it does."""

    name: str
    path: Path
    study: Path | None = None

    @property
    def windows(self) -> list[str]:
        """Names of its folders of traces, by step; none where they cannot be listed."""
        try:
            return self.listed()
        except (OSError, ValueError):
            return []

    def listed(self) -> list[str]:
        """Names of its folders of traces, by step; raises OSError where they cannot be listed."""
        try:
            found = [WINDOW.fullmatch(entry.name) for entry in _entries(self.path / "traces")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [match[0] for match in sorted((m for m in found if m), key=lambda match: int(match[1]))]

    def window(self, name: str) -> Path | None:
        """The folder of that name; only what is there has a path, whatever the name is."""
        return self.path / "traces" / name if name in self.windows else None


@dataclass
class Search:
    """Runs by name, and what was left out."""

    runs: dict[str, Run] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def roots(logdir: str | None, logdir_spec: str | None = None) -> list[tuple[str, Path]]:
    """The folders that TensorBoard was started on, each with the prefix of its runs' names."""
    if logdir:
        return [("", Path(logdir).expanduser())]
    found = []
    for part in (logdir_spec or "").split(","):
        # As TensorBoard has it: `name:folder`, where a name has no slash before the colon.
        named = re.fullmatch(r"([^/\\:]+):(.*)", part.strip())
        name, path = (named[1], named[2]) if named else ("", part.strip())
        if path:
            found.append((f"{name}/" if name else "", Path(path).expanduser()))
    return found


def search(starts: Sequence[tuple[str, Path]]) -> Search:
    """All runs under some folders, those near the top first; trees too large for that are cut, and it is said."""
    result = Search()
    for run in _walk(starts, result.notes):
        if len(result.runs) == MOST_RUNS:
            result.notes.append(f"only the first {MOST_RUNS:,} runs are shown; give a folder with fewer to --logdir")
            break
        name, number = run.name, 2
        while name in result.runs:
            name, number = f"{run.name} ({number})", number + 1
        result.runs[name] = Run(name, run.path, run.study)
    return result


class Finder:
    """Searches again when what it knows is old."""

    def __init__(self, starts: Sequence[tuple[str, Path]]) -> None:
        self.starts = starts
        self._known: tuple[float, Search] | None = None
        self._any: tuple[float, bool] | None = None
        self._lock = threading.Lock()

    def search(self, anew: bool = False) -> Search:
        """The runs, as of a few seconds ago at most, or of now."""
        with self._lock:
            if anew or self._known is None or time.monotonic() - self._known[0] > SECONDS_KNOWN:
                self._known = (time.monotonic(), search(self.starts))
            return self._known[1]

    def any(self) -> bool:
        """Whether there is a run at all; stops at the first."""
        with self._lock:
            # A run once found stays, and a search in vain need not be done again at each reload.
            if self._any is None or not (self._any[1] or time.monotonic() - self._any[0] < 10 * SECONDS_KNOWN):
                self._any = (time.monotonic(), next(_walk(self.starts, []), None) is not None)
            return self._any[1]


def _walk(starts: Sequence[tuple[str, Path]], notes: list[str]) -> Iterator[Run]:
    """Breadth first: what is near the logdir is meant rather than what is deep in it."""
    waiting = deque((prefix, path, path, 0) for prefix, path in starts)
    seen: set[tuple[int, int]] = set()
    folders = 0
    closed: list[Path] = []
    while waiting:
        prefix, root, path, depth = waiting.popleft()
        folders += 1
        if folders > MOST_FOLDERS:
            notes.append(f"only the first {MOST_FOLDERS:,} folders were searched; give a smaller one to --logdir")
            return
        try:
            facts = path.stat()
            if (facts.st_dev, facts.st_ino) in seen:
                continue  # a link to what was seen, perhaps above
            seen.add((facts.st_dev, facts.st_ino))
            entries = _entries(path)
        except PermissionError:
            closed.append(path)
            continue
        except (OSError, ValueError):
            continue
        files = {entry.name for entry in entries}
        if _is_run(path, files):
            yield Run(prefix + _shown(root, path), path, _study(root, path))
        elif depth < DEEPEST:
            below = sorted(name for name in files if name not in SKIPPED and not name.startswith("."))
            folders_below = {entry.name for entry in entries if _is_folder(entry)}
            waiting.extend((prefix, root, path / name, depth + 1) for name in below if name in folders_below)
    if closed:
        more = f" and {len(closed) - 1:,} more folders" if len(closed) > 1 else ""
        notes.append(f"{closed[0]}{more} may not be read by this user, so runs in there are not shown")


def _is_run(path: Path, names: set[str]) -> bool:
    """A config.toml alone is none: a study has one beside the repeats of each layout."""
    if names & {"run.json", "metrics.jsonl"}:
        return True
    return "traces" in names and bool(Run("", path).windows)


def _entries(path: Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as found:
        return list(islice(found, MOST_ENTRIES))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _shown(root: Path, path: Path) -> str:
    name = path.relative_to(root).as_posix() if path != root else path.resolve().name
    # File names are bytes; a browser takes text only.
    return os.fsencode(name).decode("utf-8", "replace")


def _study(root: Path, path: Path) -> Path | None:
    """The folder of the study of `<study>/<label>/repeat_<k>`, where it is inside the logdir."""
    if not re.fullmatch(r"repeat_\d+", path.name) or len(path.relative_to(root).parts) < 2:
        return None
    study = path.parents[1]
    try:
        return study if (study / "report.json").is_file() or (study / "study.json").is_file() else None
    except OSError:
        return None
