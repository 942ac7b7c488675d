"""What became of a run, told from its exit status, its run files and its log."""

from __future__ import annotations

import re
from pathlib import Path

from torchlayout.errors import InputError
from torchlayout.records import RunDirectory

TAIL_BYTES = 400_000
# Said by the trainer, and by those below it that no Python exception comes from.
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|Cannot allocate memory|bad_alloc|MemoryError"
    r"|CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
ERROR_LINE = re.compile(r"^(?:\[rank\d+\]: ?)?([A-Za-z_][\w.]*(?:Error|Exception|Disagree|Stopped)\b.*)$")
# torchrun's table of what failed.
FAILED_RANK = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(-?\d+)")
NOT_OURS = re.compile(r"[WEI]\d{4} |\[[WEI]\d{4} |\*+$|Setting OMP_NUM_THREADS")  # torch's own lines
SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
LONGEST_REASON = 300


def judge(
    directory: RunDirectory, log: Path, exit_code: int, steps: int, kernel_killed: bool
) -> tuple[str, str | None]:
    """Status and reason of a run that ended by itself; `kernel_killed`: the kernel ended a process to free memory."""
    done = len(directory.metrics())
    said = _exit_reason(directory)
    if exit_code == 0 and said == "done" and done == steps:
        return "ok", None
    if said.startswith("out of memory"):
        return "oom", _short(said)
    text = _tail(log)
    if exit_code == 0:
        return "failed", f"ended without an error after {done} of {steps} steps; {_see(log)}"
    lines = [line.strip() for line in text.splitlines()]
    if line := next((line for line in lines if line.startswith(("out of memory", "rank ")) and _is_oom(line)), None):
        return "oom", _short(line)
    if line := next((line for line in lines if _is_oom(line)), None):
        return "oom", _short(f"out of memory: {line}")
    killed = _killed(text)
    if kernel_killed and killed and "SIGKILL" in killed:
        return "oom", f"out of memory: {killed} by the kernel, because the host's memory was used up"
    if said and said not in ("running", "done"):
        return "failed", _short(said)
    if refused := _refused(text, lines):
        return "failed", refused
    if killed:
        return "failed", f"{killed} after {done} of {steps} steps; {_see(log)}"
    if 128 < exit_code < 160:
        number = exit_code - 128
        return "failed", f"its launcher was killed by signal {number} ({SIGNALS.get(number, 'unknown')}); {_see(log)}"
    errors = [match[1] for line in lines if (match := ERROR_LINE.match(line)) and "ChildFailedError" not in line]
    what = _short(errors[0]) if errors else f"exit status {exit_code}" + (f": {_last(lines)}" if _last(lines) else "")
    return "failed", f"{what} (after {done} of {steps} steps; {_see(log)})"


def timed_out(directory: RunDirectory, seconds: float, steps: int) -> str:
    """The reason of a run that was ended."""
    return f"ended after compare.timeout_seconds = {seconds:g}, with {len(directory.metrics())} of {steps} steps done"


def kernel_kills() -> int:
    """How many processes this machine's kernel has ended to free memory; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _exit_reason(directory: RunDirectory) -> str:
    try:
        return str(directory.read_run().get("exit_reason", ""))
    except InputError:
        return ""  # it ended before it wrote one


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        return file.read().decode(errors="replace")


def _is_oom(line: str) -> bool:
    return OUT_OF_MEMORY.search(line) is not None


def _killed(text: str) -> str | None:
    """What torchrun says of a rank that a signal ended, if that was the first to fail: it ends the others itself."""
    failed = FAILED_RANK.findall(text.rpartition("Root Cause")[2])
    rank, code = (int(number) for number in failed[0]) if failed else (0, 0)
    return f"rank {rank} was killed by signal {-code} ({SIGNALS.get(-code, 'unknown')})" if code < 0 else None


def _refused(text: str, lines: list[str]) -> str | None:
    """The sentence with which the training refused its configuration, which it does with exit status 2."""
    failed = FAILED_RANK.findall(text.rpartition("Root Cause")[2])
    if not failed or failed[0][1] != "2":
        return None
    return next((_short(line) for line in lines if line and not NOT_OURS.match(line)), None)


def _last(lines: list[str]) -> str:
    return _short(next((line for line in reversed(lines) if line.strip("=- ")), ""))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."


def _see(log: Path) -> str:
    return f"see {log.parent.parent.parent.name}/{log.parent.parent.name}/logs/{log.name}"
