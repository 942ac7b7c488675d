"""Where a layout's step went, from the breakdowns of its runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from torchlayout.records import RunDirectory
from torchlayout.trace.breakdown import families


def traced_shares(runs: Iterable[Path]) -> dict[str, float] | None:
    """Parts of the step by what they were spent on, means over the runs that were traced; None where none was.

    compute, communication (exposed), bubble, idle, data, optimizer, checkpoint; they sum to 1.
    """
    found = [shares for run in runs if (shares := _shares(RunDirectory(run).traces_path))]
    if not found:
        return None
    names = sorted({name for shares in found for name in shares})
    return {name: sum(shares.get(name, 0.0) for shares in found) / len(found) for name in names}


def _shares(traces: Path) -> dict[str, float]:
    for path in sorted(traces.glob("step_*/breakdown.json")):
        try:
            return families(json.loads(path.read_bytes())["mean"])
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            continue  # half written, or of a version that is not ours
    return {}
