"""The planner's word on the steps that tests/harness/tracked.py took an account of."""

from __future__ import annotations

from typing import Any

from torchlayout.config import ModelConfig
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.job import Job
from torchlayout.plan.memory.peak import Memory, rank_memories
from torchlayout.plan.search.question import KERNELS
from torchlayout.plan.software import Software
from torchlayout.plan.time.block import Blocks


def own_blocks(device: str, precision: str = "bf16") -> Blocks:
    """Our own stack on the CPU or on CUDA."""
    software = Software.load("torchlayout").model_copy(update={"device": device})
    hardware = Hardware.load("cpu-2core" if device == "cpu" else "h100-sxm-80gb")
    return Blocks(hardware, software, Calibration(), precision)


def job_of(account: dict[str, Any]) -> Job:
    """The step that a rank's account is of."""
    layout = Layout.parse(account["label"])
    model = ModelConfig(**{key: value for key, value in account["model"].items() if value is not None})
    return Job(
        model,
        account["sequence"],
        account["global_batch"],
        layout,
        attention=KERNELS[layout.attention],
        precision=account["precision"],
        loss=account["loss"],
    )


def predicted(account: dict[str, Any]) -> Memory:
    """What the planner says of the rank that an account is of."""
    job = job_of(account)
    rank = account["rank"] // (job.layout.world // job.layout.pipeline)
    return rank_memories(own_blocks("cpu", account["precision"]), job)[rank]


def counted(memory: Memory) -> float:
    """Bytes of tensors: all but what the context and libraries take and what the allocator wastes."""
    return memory.bytes - memory.base - memory.fragmentation
