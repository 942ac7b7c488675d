"""Where this process runs: device, process group, and what to write down about both."""

from __future__ import annotations

import datetime
import os
import platform
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchlayout.errors import InputError

RESIDENT_PAGES = Path("/proc/self/statm")


def pick_device() -> torch.device:
    """The accelerator of this local rank, or the CPU where there is none."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.accelerator.device_count()
    if local_rank >= count:
        raise InputError(
            f"local rank {local_rank} has no {accelerator.type} device: this node has {count}; "
            f"lower --nproc-per-node to {count}, or hide the devices (CUDA_VISIBLE_DEVICES='') to run on the CPU"
        )
    device = torch.device(accelerator.type, local_rank)
    torch.accelerator.set_device_index(local_rank)
    return device


@contextmanager
def process_group(device: torch.device, timeout_seconds: float) -> Iterator[None]:
    """Join torchrun's ranks (or be alone without torchrun), and leave at the end."""
    timeout = datetime.timedelta(seconds=timeout_seconds)
    backend = dist.get_default_backend_for_device(device)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group(backend, timeout=timeout, rank=rank, world_size=world, store=_store(timeout))
    try:
        yield
    finally:
        dist.destroy_process_group()


def _store(timeout: datetime.timedelta) -> Any:
    """The store in which the ranks find each other; None: where init_process_group looks by itself."""
    if "WORLD_SIZE" not in os.environ:
        return dist.HashStore()  # type: ignore[attr-defined]
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return None
    # torchrun keeps its store over restarts, and with it the addresses of ranks that died (pytorch/pytorch#135712).
    # Agents of several nodes count restarts each for itself; launch/ gives those a new store instead.
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    prefix = f"restart_{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


class MemoryMeter:
    """The memory this process holds: of the device's allocator on CUDA, else resident on the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.measure = "allocator" if device.type == "cuda" else "resident"
        self.earlier_peak = 0  # before the device's own count was started anew

    def peak_bytes(self) -> int:
        """The most that was held at any time so far."""
        if self.measure == "allocator":
            return max(self.earlier_peak, torch.cuda.max_memory_allocated(self.device))
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def now_bytes(self) -> int:
        """What is held now; where the host does not tell, its peak."""
        if self.measure == "allocator":
            return torch.cuda.memory_allocated(self.device)
        if not RESIDENT_PAGES.exists():
            return self.peak_bytes()
        return int(RESIDENT_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def lap_bytes(self) -> int:
        """The most that was held since the last call; on a host what is held now, as its peak cannot start anew."""
        if self.measure == "resident":
            return self.now_bytes()
        lap = torch.cuda.max_memory_allocated(self.device)
        self.earlier_peak = max(self.earlier_peak, lap)
        torch.cuda.reset_peak_memory_stats(self.device)
        return lap


def device_name(device: torch.device) -> str:
    """The name a hardware file is matched against."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()


def fingerprint(device: torch.device) -> dict[str, object]:
    """Software and hardware of this process, as written to run.json."""
    return {
        "software": {
            "torchlayout": _version("torchlayout"),
            "torch": torch.__version__,
            "torchdata": _version("torchdata"),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cuda": torch.version.cuda,
            "threads": torch.get_num_threads(),
        },
        "hardware": {
            "host": socket.gethostname(),
            "device": device.type,
            "device_name": device_name(device),
            "devices_per_node": torch.accelerator.device_count() if device.type != "cpu" else os.cpu_count(),
            "backend": dist.get_backend(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
