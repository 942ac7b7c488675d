"""Where a layout's step went, from the breakdowns of its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchlayout.records import RunDirectory
from torchlayout.trace.breakdown import families


@dataclass(frozen=True)
class Traced:
    """What the traces of a layout's runs say.

    shares: parts of the step by what they were spent on, means over the runs that were traced: compute, communication
    (exposed), bubble, idle, data, optimizer, checkpoint; they sum to 1; None where none was traced. causes: of the
    first of them.
    """

    shares: dict[str, float] | None
    causes: list[str]


def traced(runs: Iterable[Path]) -> Traced:
    """Read the breakdowns that runs have left; one that cannot be read is passed over."""
    found = [one for run in runs if (one := _read(RunDirectory(run))) is not None]
    if not found:
        return Traced(None, [])
    names = sorted({name for shares, _ in found for name in shares})
    mean = {name: sum(shares.get(name, 0.0) for shares, _ in found) / len(found) for name in names}
    return Traced(mean, found[0][1])


def _read(run: RunDirectory) -> tuple[dict[str, float], list[str]] | None:
    """The newest window's."""
    for window in reversed(run.trace_windows().values()):
        try:
            document = json.loads((window / "breakdown.json").read_bytes())
            shares = families(document["mean"])
            if all(math.isfinite(share) for share in shares.values()):
                return shares, [str(cause["sentence"]) for cause in document["causes"]]
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
            continue  # half written, or of a version that is not ours
    return None
