"""Running out of memory is a result: a limit to test it by, and one sentence where it happens."""

from __future__ import annotations

import re
import resource
import sys

import torch

from torchlayout.errors import InputError
from torchlayout.records import RunDirectory

PREFIX = "out of memory: "
# What torch, its allocators, cuBLAS, NCCL and C++ say in a plain RuntimeError.
SAID = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|bad_alloc|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE
)
# What it is called when a thread gets no stack; without a limit of ours it is the number of threads that ran out.
NO_STACK = "Resource temporarily unavailable"
BYTES = re.compile(r"tried to allocate (\d+) bytes")


def limit_host_memory(gib: float | None, device: torch.device) -> None:
    """Limits what this process may allocate on the host; None: no limit. Raises InputError where that cannot be."""
    if gib is None:
        return
    if device.type != "cpu" or sys.platform != "linux":
        raise InputError(
            f"train.host_memory_limit_gib = {gib:g} limits runs on the CPU under Linux, and this one is on "
            f"{device.type} under {sys.platform}; leave it out"
        )
    # Not RLIMIT_AS, which counts libraries and reserved addresses too, nor RLIMIT_RSS, which Linux does not enforce.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def lift_host_memory_limit() -> None:
    """Takes the limit away again, so that the run can write down how it ended."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def out_of_memory(error: BaseException, gib: float | None, rank: int | None = None) -> str | None:
    """The sentence about an error that memory ran out, `out of memory: ...`; None for any other error.

    gib: the limit that was set, and rank, where there are several: the sentence names them. Looks at the causes too,
    as torch's pipeline wraps errors.
    """
    where = PREFIX if rank is None else f"{PREFIX}rank {rank}: "
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, torch.OutOfMemoryError):
            return where + " ".join(str(cause).split())
        said = str(cause)
        if isinstance(cause, MemoryError) or (isinstance(cause, RuntimeError) and SAID.search(said)):
            return where + _on_host(said, gib)
        if gib is not None and NO_STACK in said:
            return where + _on_host("a thread's stack could not be allocated on the host", gib)
        cause = cause.__cause__ or cause.__context__
    return None


def _on_host(said: str, gib: float | None) -> str:
    if found := BYTES.search(said):
        what = f"{int(found[1]) / 2**20:,.1f} MiB more could not be allocated on the host"
    else:
        what = " ".join(said.split()) or "the host has no more"
    return what if gib is None else f"{what} (train.host_memory_limit_gib = {gib:g} for each rank)"


def record_out_of_memory(directory: RunDirectory, sentence: str, facts: dict[str, object]) -> None:
    """Writes how a run ended to run.json from the rank that knows; `facts` stand for a file that is not there yet."""
    known = directory.read_run() if directory.run_path.exists() else facts
    directory.create().write_run(known | {"exit_reason": sentence})


def recorded_out_of_memory(directory: RunDirectory) -> str | None:
    """The sentence that another rank wrote to run.json; None where none did."""
    reason = directory.read_run().get("exit_reason") if directory.run_path.exists() else None
    return reason if isinstance(reason, str) and reason.startswith(PREFIX) else None
