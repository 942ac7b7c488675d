from __future__ import annotations

import math
from pathlib import Path

import pytest

from harness.measured_rows import runs_of
from torchlayout.errors import InputError
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.measured.predict import Machines, peak_bytes_of
from torchlayout.plan.measured.residuals import Residuals, pseudo_huber
from torchlayout.plan.memory.peak import GIB


def test_each_row_tells_what_it_has(tmp_path: Path) -> None:
    oom = {"status": "oom", "step_time_s": ""}
    flagged = {"trust": "slow fabric", "mem_gb": 30}
    runs = runs_of(tmp_path / "a.csv", [{}, {"mem_gb": 30}, {"mem_gb": 30, "step_time_s": ""}, oom, flagged])
    residuals = Residuals(runs)
    assert [run.place[-1] for run in residuals.timed] == ["2", "3"]
    assert [run.place[-1] for run in residuals.peaks] == ["3", "4"]
    assert [run.place[-1] for run in residuals.verdicts] == ["2", "5", "6"]
    assert not Residuals(runs, memory=False).verdicts
    assert not Residuals(runs, time=False).timed


def test_a_row_that_is_no_job_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(machine: object, job: object) -> float:
        raise InputError("it can't be")

    monkeypatch.setattr("torchlayout.plan.measured.residuals.peak_bytes_of", refuse)
    with pytest.raises(InputError, match=r"a\.csv line 2: it can't be; leave it out"):
        Residuals(runs_of(tmp_path / "a.csv", [{}]))


def test_a_clear_verdict_weighs_nothing_and_a_wrong_one_grows_with_its_root(tmp_path: Path) -> None:
    machines = Machines(Calibration())
    (run,) = runs_of(tmp_path / "a.csv", [{"tp": 8, "pp": 4, "dp": 2}])
    far = (run.hardware.memory_gib - peak_bytes_of(machines.of(run), run.job) / GIB) / 2
    assert far > 10, "the run is too near the device's memory for this test"
    (oom,) = runs_of(tmp_path / "b.csv", [{"tp": 8, "pp": 4, "dp": 2, "status": "oom", "step_time_s": ""}])
    assert Residuals([run]).memory(Calibration())[0] == pytest.approx(0, abs=1e-2)
    assert Residuals([oom]).memory(Calibration())[0] == pytest.approx(math.sqrt(2 * far), rel=1e-3)


def test_the_pseudo_huber_loss_is_square_near_zero_and_linear_far_out() -> None:
    import numpy as np

    near, far = pseudo_huber(np.array([0.01, -200.0]))
    assert near == pytest.approx(0.01, rel=1e-4)
    assert far**2 / 2 == pytest.approx(199, rel=1e-3)
    assert far < 0
