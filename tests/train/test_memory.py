from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
import torch

from config.bad_cases import GOOD
from harness.launch import torchrun
from torchlayout.errors import InputError
from torchlayout.records import RunDirectory
from torchlayout.train.__main__ import main
from torchlayout.train.memory import limit_host_memory, out_of_memory
from torchlayout.train.trainer import StepResult, Trainer

HUGE = 2**40  # elements


@pytest.fixture
def config(small_corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "input.toml"
    path.write_text(GOOD.replace("CORPUS", str(small_corpus)))
    return path


@pytest.mark.parametrize("when", ["before the first step", "in the second step"])
def test_a_run_that_runs_out_of_memory_says_so_in_one_sentence_and_in_run_json(
    when: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, build = Trainer.step, Trainer.weights_digest

    def greedy_step(trainer: Trainer) -> StepResult:
        if trainer.steps_done == 1:
            torch.empty(HUGE)
        return step(trainer)

    def greedy_build(trainer: Trainer) -> str:
        torch.empty(HUGE)
        return build(trainer)

    if when == "in the second step":
        monkeypatch.setattr(Trainer, "step", greedy_step)
    else:
        monkeypatch.setattr(Trainer, "weights_digest", greedy_build)
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        status = main([str(config), "--set", f"run.directory={tmp_path}", "--layout", "fsdp1+mb4"])
    files = RunDirectory(tmp_path / "good")
    reason = files.read_run()["exit_reason"]
    assert reason == "out of memory: 4,194,304.0 MiB more could not be allocated on the host"
    assert (status, err.getvalue()) == (1, reason + "\n")
    assert len(files.metrics()) == (1 if when == "in the second step" else 0)


def test_a_limit_ends_a_run_and_the_rank_that_hit_it_is_named(config: Path, tmp_path: Path) -> None:
    script = tmp_path / "greedy.py"
    script.write_text(
        "import os, sys, torch\n"
        "from torchlayout.train.__main__ import main\n"
        "from torchlayout.train.trainer import Trainer\n"
        "step = Trainer.step\n"
        "def greedy(trainer):\n"
        "    if trainer.steps_done == 1 and os.environ['RANK'] == '1':\n"
        "        torch.empty(2**28)\n"
        "    return step(trainer)\n"
        "Trainer.step = greedy\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    settings = [f"run.directory={tmp_path}", "train.host_memory_limit_gib=1", "train.timeout_seconds=60"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = torchrun(2, str(script), str(config), "--layout", "fsdp2+mb2", *words)
    assert done.returncode == 1
    files = RunDirectory(tmp_path / "good")
    reason = files.read_run()["exit_reason"]
    assert reason == (
        "out of memory: rank 1: 1,024.0 MiB more could not be allocated on the host "
        "(train.host_memory_limit_gib = 1 for each rank)"
    )
    assert reason in done.stderr
    assert [line["step"] for line in files.metrics()] == [1]


def test_memory_is_found_among_the_causes_of_an_error() -> None:
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        except RuntimeError as inner:
            raise RuntimeError("stage 1 failed to run forward") from inner
    except RuntimeError as error:
        said = out_of_memory(error, None, rank=3)
    assert said == "out of memory: rank 3: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert out_of_memory(MemoryError(), None) == "out of memory: the host has no more"
    assert out_of_memory(RuntimeError("std::bad_alloc"), 2.0) == (
        "out of memory: std::bad_alloc (train.host_memory_limit_gib = 2 for each rank)"
    )


def test_other_errors_are_no_lack_of_memory() -> None:
    assert out_of_memory(RuntimeError("shapes do not match"), 2.0) is None
    assert out_of_memory(ValueError("out of memory"), None) is None
    assert out_of_memory(RuntimeError("Resource temporarily unavailable"), None) is None


def test_a_limit_is_for_the_cpu_only() -> None:
    with pytest.raises(InputError, match="limits runs on the CPU under Linux, and this one is on cuda"):
        limit_host_memory(2.0, torch.device("cuda"))
