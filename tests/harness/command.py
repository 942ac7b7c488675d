"""A small run on the command line: `python -m torchlayout.train`, with or without torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlayout.records import RunDirectory

BASE = {
    "run.name": "run",
    "data.sequence_length": 32,
    "data.workers": 0,
    "batch.global_size": 4,
    "precision.parameters": "fp32",
    "train.steps": 4,
    "checkpoint.every": 2,
}


@dataclass(frozen=True)
class SmallRun:
    """The debug model on a corpus; its run directory is folder/run."""

    folder: Path
    corpus: Path

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.folder / "run")

    def steps_on_disk(self) -> list[str]:
        return sorted(path.name for path in self.directory.checkpoints_path.iterdir())

    def line(self, ranks: int = 1, torchrun: tuple[str, ...] = (), **settings: Any) -> list[str]:
        """The command line; settings with `__` for the dot: train__steps=8."""
        config = self.folder / "config.toml"
        config.write_text('[model]\npreset = "debug"\n[data]\npath = ""\n')
        given = {key.replace("__", "."): value for key, value in settings.items()}
        values = BASE | {"run.directory": self.folder, "data.path": self.corpus} | given
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *torchrun]
        overrides = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        return [sys.executable, *(launcher * (ranks > 1)), "-m", "torchlayout.train", str(config), *overrides]

    def start(self, line: list[str], **keywords: Any) -> subprocess.Popen[str]:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(line, **({"env": environment} | pipes | keywords))

    def run(self, line: list[str], **keywords: Any) -> subprocess.CompletedProcess[str]:
        """Run a command line to its end."""
        process = self.start(line, **keywords)
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        return subprocess.CompletedProcess(line, process.returncode, out, err)
