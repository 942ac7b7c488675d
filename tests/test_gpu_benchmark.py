from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from torchlayout.hardware import Hardware

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"

# Runs the script where what a bare GPU machine lacks cannot be imported.
BARE = f"""
import runpy, sys
for name in ("torchdata", "pydantic", "typer", "rich", "tensorboard", "tomli_w"):
    sys.modules[name] = None
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
# What a CPU lacks: flash-attn needs CUDA, flex has no backward pass.
MAY_BE_MISSING = {"attention flash", "attention flex, compiled"}


@pytest.mark.slow
def test_the_gpu_script_runs_tiny_where_there_is_torch_and_numpy_only(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-c", BARE, "--tiny", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(figures.read_text())
    assert {row["precision"]: row["within"] for row in written["correctness"]} == {"fp32": True, "bf16": True}

    rows = {row["name"]: row for row in written["rows"]}
    assert len(rows) == 8
    assert {row["status"] for name, row in rows.items() if name not in MAY_BE_MISSING} == {"ok"}
    measured = [row for row in rows.values() if row["status"] == "ok"]
    assert all(row["step_milliseconds"] > 0 and row["peak_gib"] > 0 and row["mfu"] is None for row in measured)
    # Every kernel computes the same loss, which the steps have brought below that of a uniform guess.
    losses = [row["loss"] for row in measured]
    assert max(losses) - min(losses) < 1e-3
    assert max(losses) < math.log(257)

    table = done.stdout[done.stdout.index("step ms") :].splitlines()[1:]
    assert [line[:44].strip() for line in table] == list(rows)
    assert all(
        f"{row['step_milliseconds']:.1f}" in line
        for line, row in zip(table, rows.values(), strict=True)
        if row in measured
    )


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA GB200", "x86_64", "NVIDIA L40S"])
def test_the_script_knows_the_peaks_that_the_hardware_files_know(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu

    hardware = Hardware.detect(name)
    assert gpu.peak_flops(name) == (hardware and hardware.peak("bf16"))
    assert (hardware is None) == (name in ("x86_64", "NVIDIA GB200"))
