from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchlayout.compare import launcher
from torchlayout.errors import InputError

TRAINING = ["-m", "torchlayout.train", "some config.toml"]


def words(template: str, job: str = "study-1") -> list[str]:
    return launcher.command(
        template, TRAINING, nproc=8, nnodes=2, label="pp2-tp8", directory="s/pp2-tp8/repeat_1", job=job
    )


def test_torchrun_starts_the_ranks_of_this_node() -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8"]
    assert words("torchrun") == [*start, *TRAINING]


def test_a_template_is_filled_word_by_word() -> None:
    filled = words("ssh 'a b' {nnodes}x{nproc}={world} {label} {directory} {command}")
    assert filled == ["ssh", "a b", "2x8=16", "pp2-tp8", "s/pp2-tp8/repeat_1", *TRAINING]


class TestSlurm:
    """`srun`, in an allocation."""

    @pytest.fixture(autouse=True)
    def allocation(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scontrol = tmp_path / "scontrol"
        scontrol.write_text("#!/bin/sh\necho node07\necho node08\n")
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "node[07-08]")

    def test_one_torchrun_on_each_node_meets_at_the_first(self) -> None:
        started = words("srun")
        assert started[:7] == ["srun", "--nodes", "2", "--ntasks", "2", "--ntasks-per-node", "1"]
        endpoint = started[started.index("--rdzv-endpoint") + 1]
        assert endpoint.startswith("node07:")
        assert started[-3:] == TRAINING
        # A port in which the last run's sockets still linger is not the next one's.
        assert endpoint not in words("srun", job="study-2")

    def test_without_scontrol_it_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(InputError, match="scontrol does not say which nodes"):
            words("srun")
