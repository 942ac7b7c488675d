"""Files of measured runs that tests write, and the published ones where a checkout has them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from torchlayout.plan.measured.predict import Prediction
from torchlayout.plan.measured.runs import COLUMNS, OPTIONAL, Run, read_runs
from torchlayout.plan.memory.peak import GIB

MEASURED = Path(__file__).parents[3] / "shared" / "measured"
"""Beside the repository: the files belong to their authors and never go into it."""

ROW = {
    "source": "arXiv 2311.05610 data (test)", "model": "llama-13B", "layers": "40", "hidden": "5120", "heads": "40",
    "kv_heads": "40", "ffn": "13824", "vocab": "128000", "seq": "2048", "gpus": "64", "gpu": "a100-sxm-80gb",
    "precision": "bf16", "tp": "2", "sp": "False", "pp": "2", "vp": "1", "cp": "1", "dp": "16", "sharding": "zero1",
    "mbs": "1", "gbs": "2048", "recompute": "none", "attention": "flash2", "norm": "fused", "step_time_s": "40.0",
    "tok_s_gpu": "", "mfu": "", "mem_gb": "", "status": "ok", "trust": "ok", "note": "",
}  # fmt: skip
"""A run of the study's shape."""


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """A file with ROW changed by each mapping."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *OPTIONAL])
        writer.writeheader()
        writer.writerows(ROW | {key: str(value) for key, value in row.items()} for row in rows)
    return path


def runs_of(path: Path, rows: Iterable[Mapping[str, object]]) -> list[Run]:
    """The runs of such a file."""
    return read_runs(write_rows(path, rows))


def published(name: str) -> Path:
    """A published file; the test is skipped where it is not there."""
    if not (path := MEASURED / name).is_file():
        pytest.skip(f"{path} is not there: measured runs of other people are kept beside the repository")
    return path


def prediction(run: Run, seconds: float = 1.0, peak_gib: float = 40.0) -> Prediction:
    """What a planner might have said of a run, on a device of 80 GiB and 1 FLOP/s; 3 GiB are not torch's own."""
    return Prediction(
        run=run,
        seconds=seconds,
        peak_bytes=peak_gib * GIB,
        reserved_bytes=(peak_gib - 3) * GIB,
        capacity_bytes=80 * GIB,
        model_flops=100.0,
        peak_flops=1.0,
    )
