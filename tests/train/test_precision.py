from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_bf16_with_fp32_reduction_keeps_the_loss_within_two_percent_of_fp32() -> None:
    labels = ("fsdp2+mb4", "pp2+mb4")
    only = [word for label in labels for word in ("--only", label)]
    command = [sys.executable, str(BENCHMARKS / "precision.py"), "--steps", "8", *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", label] for label in labels]
    for line in lines:
        worst = float(line.split("at most ")[1].split("%")[0])
        assert 0.001 <= worst < 2.0, "not bf16, or too far"


@pytest.mark.parametrize("bf16", [[5.0, 4.2], [5.0, math.nan], [math.nan, 4.0]], ids=str)
def test_two_percent_more_and_nan_fail(bf16: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import precision

    assert precision.report("fsdp1", [5.0, 4.05], [5.0, 4.0])
    assert not precision.report("fsdp1", bf16, [5.0, 4.0])
