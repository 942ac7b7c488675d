"""Studies whose training is `fake_train.py`, drivers that can be killed, and what must be left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchlayout.compare.guard import VARIABLE
from torchlayout.compare.result import collect

FAKE = Path(__file__).parent / "fake_train.py"
BASE = """
[base.model]
preset = "debug"
[base.data]
path = "CORPUS"
sequence_length = 32
workers = 0
[base.batch]
global_size = 8
[base.precision]
parameters = "fp32"
"""
DRIVER = """
import sys
from torchlayout.compare.runner import run_study
from torchlayout.compare.study import Study
run_study(Study.load(sys.argv[1]), resume="--resume" in sys.argv)
"""


def study_file(
    folder: Path, layouts: Sequence[str], corpus: object = "nowhere", fake: bool = True, **compare: Any
) -> Path:
    """A study of two ranks, below `folder`."""
    settings: dict[str, Any] = {"nproc": 2, "steps": 4, "warmup_steps": 1}
    if fake:
        settings["launcher"] = f"{{python}} -I -S {FAKE} {{nproc}} {{command}}"
    lines = [f"{key} = {json.dumps(value)}" for key, value in (settings | compare).items()]
    path = folder / "study.toml"
    head = f"directory = {json.dumps(str(folder / 'studies'))}\nlayouts = {json.dumps(list(layouts))}\n[compare]\n"
    path.write_text(head + "\n".join(lines) + BASE.replace("CORPUS", str(corpus)))
    return path


def driver(file: Path, *arguments: str, behaviour: Mapping[str, Any] | None = None) -> subprocess.Popen[bytes]:
    """A process that runs a study, as `torchlayout compare` does before it reports."""
    environment = os.environ | {"FAKE_BEHAVIOUR": json.dumps(behaviour or {})}
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(file), *arguments], env=environment)


def processes_of(file: Path) -> list[int]:
    """Living processes of a study file's jobs, whoever is their parent."""
    mark = f"{VARIABLE}={file.stem}-".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        # Two tests may have studies of one name; the folder is each one's own.
        if mark in environment and str(file.parent).encode() in command:
            found.append(int(folder.name))
    return found


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Polls; fails where it does not become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.01)


def table(directory: Path) -> dict[str, Any]:
    """What a study concludes, without the clock of this machine and the place of its folder."""
    content = collect(directory)
    del content["study"]["created"]
    for layout in content["layouts"]:
        del layout["torchrun"]
        for repeat in layout["repeats"]:
            del repeat["seconds"]
    return content
