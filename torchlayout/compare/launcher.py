"""The command that starts one run: torchrun on this machine, srun in a Slurm allocation, or a template."""

from __future__ import annotations

import os
import shlex
import socket
import string
import subprocess
import sys
import zlib
from collections.abc import Sequence

from torchlayout.errors import InputError
from torchlayout.layout.words import nearest

BUILT_IN = {
    "torchrun": "{python} -m torch.distributed.run --standalone --nproc-per-node {nproc} {command}",
    "srun": (
        "srun --nodes {nnodes} --ntasks {nnodes} --ntasks-per-node 1 --kill-on-bad-exit=1 "
        "{python} -m torch.distributed.run --nnodes {nnodes} --nproc-per-node {nproc} "
        "--rdzv-id {id} --rdzv-backend c10d --rdzv-endpoint {host}:{port} {command}"
    ),
}
PLACES = ("python", "nproc", "nnodes", "world", "label", "directory", "id", "host", "port", "command")


def problems(launcher: str, nnodes: int) -> list[str]:
    """What is wrong with compare.launcher, a sentence each."""
    if launcher == "torchrun" and nnodes > 1:
        return [
            f'compare.launcher = "torchrun" starts ranks on one node, and compare.nnodes = {nnodes}; '
            'legal: "srun" inside a Slurm allocation, or a command with {nnodes} and {command} in it'
        ]
    if launcher in BUILT_IN:
        return []
    try:
        words = shlex.split(launcher)
        places = [name for word in words for _, name, _, _ in string.Formatter().parse(word) if name is not None]
    except ValueError as error:
        return [f"compare.launcher is no command: {str(error).lower()}"]
    wrong = [
        f"compare.launcher has {{{name}}}, which stands for nothing; {nearest(name, PLACES)}"
        for name in places
        if name not in PLACES
    ]
    if "{command}" not in words:
        wrong.append(
            "compare.launcher has no word {command}, where the training goes; "
            f"legal: {', '.join(BUILT_IN)}, or for example {BUILT_IN['torchrun']}"
        )
    return wrong


def command(
    launcher: str, training: Sequence[str], *, nproc: int, nnodes: int, label: str, directory: str, job: str
) -> list[str]:
    """The words of the command; `training` are those after the Python interpreter, `job` is unique to the run."""
    template = shlex.split(BUILT_IN.get(launcher, launcher))
    values = {
        "python": sys.executable,
        "nproc": nproc,
        "nnodes": nnodes,
        "world": nproc * nnodes,
        "label": label,
        "directory": directory,
        "id": job,
        "host": _head_node() if "{host}" in launcher or launcher == "srun" else "",
        "port": 20_000 + zlib.crc32(job.encode()) % 20_000,  # another one for each run: old sockets linger
    }
    words: list[str] = []
    for word in template:
        words += training if word == "{command}" else [word.format(**values)]
    return words


def _head_node() -> str:
    """The first node of the Slurm allocation, or this machine."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if nodes:
        try:
            asked = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(f"scontrol does not say which nodes SLURM_JOB_NODELIST = {nodes} has: {error}") from error
        return asked.stdout.split()[0]
    return socket.gethostname()
