"""What is profiled in tests, and its traces read back."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from harness.cases import configuration
from torchlayout.data.corpus import Corpus
from torchlayout.trace.ranges import Range

STEPS, GLOBAL_BATCH, SEQUENCE = 3, 8, 32


def raw(corpus: Path, folder: Path, name: str, **profile: Any) -> dict[str, Any]:
    """fp64; an evaluation in each second step."""
    tables = configuration("grouped-query", str(corpus), "fp64", STEPS)
    tables["run"] |= {"directory": str(folder), "name": name}
    tables["data"] |= {"evaluation_fraction": 8.5 / Corpus.open(corpus).samples(SEQUENCE)}
    tables["train"] |= {"evaluate_every": 2, "evaluate_batches": 1}
    return tables | {"profile": profile}


def traces(run: Path, step: int) -> dict[int, dict[str, Any]]:
    """The traces of a window by rank."""
    found = {}
    for path in sorted((run / "traces" / f"step_{step}").glob("rank*.pt.trace.json.gz")):
        rank, host, *ending = path.name.split(".")
        assert host, path
        assert ending == ["pt", "trace", "json", "gz"]
        found[int(rank.removeprefix("rank"))] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def ranges_by_step(trace: dict[str, Any]) -> dict[int, list[Range]]:
    """The ranges inside of each step's, in the order of their starts."""
    events = sorted((e for e in trace["traceEvents"] if e.get("ph") == "X"), key=lambda event: event["ts"])
    spans = [(found, e) for e in events if (found := Range.parse(e["name"])) is not None]
    return {
        outer.step: [
            inner
            for inner, e in spans
            if inner.phase != "step" and 0 <= e["ts"] - around["ts"] <= around["dur"] - e["dur"]
        ]
        for outer, around in spans
        if outer.phase == "step" and outer.step is not None
    }


@cache
def ranges_by_rank(run: Path, step: int) -> dict[int, dict[int, list[Range]]]:
    """By rank and step; kept, as a trace takes long to read."""
    return {rank: ranges_by_step(trace) for rank, trace in traces(run, step).items()}
