"""What the planner says of one job on one machine: memory by rank and seconds by item."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchlayout.model.count import flops_per_token
from torchlayout.plan.memory.peak import GIB, Memory, fits, rank_memories, worst_memory
from torchlayout.plan.time.block import Blocks
from torchlayout.plan.time.play import played_step_time
from torchlayout.plan.time.step import StepTime, step_time

if TYPE_CHECKING:
    from torchlayout.hardware import Hardware
    from torchlayout.plan.calibration import Calibration
    from torchlayout.plan.job import Job
    from torchlayout.plan.software import Software


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step and memory of the pipeline ranks, counted when it is asked for, of one job."""

    job: Job
    time: StepTime
    capacity_bytes: float
    peak_flops: float
    blocks: Blocks

    @cached_property
    def memory(self) -> Memory:
        """Memory of the pipeline rank that needs most."""
        return worst_memory(self.blocks, self.job)

    @cached_property
    def ranks(self) -> tuple[Memory, ...]:
        """Memory of each pipeline rank."""
        return rank_memories(self.blocks, self.job)

    @property
    def worst_rank(self) -> int:
        """The pipeline rank that needs most memory."""
        return max(range(len(self.ranks)), key=lambda rank: self.ranks[rank].bytes)

    @property
    def mfu(self) -> float:
        """Model FLOPs, by the convention of arXiv 2311.05610, over what the devices could do in the step."""
        job = self.job
        tokens = job.batch * job.sequence
        done = tokens * flops_per_token(job.model, job.sequence, "paper")
        return done / (self.time.seconds * job.layout.world * self.peak_flops)

    def fits(self, margin_gib: float = 0.0) -> bool:
        """Whether the worst rank leaves so much memory of the device free."""
        budget = self.capacity_bytes - margin_gib * GIB
        if "memory" in self.__dict__:
            return self.memory.bytes <= budget
        return fits(self.blocks, self.job, budget)


class Machine:
    """A device with a stack on it under one calibration; estimates jobs, remembering what they share."""

    def __init__(
        self, hardware: Hardware, software: Software, calibration: Calibration, precision: str = "bf16"
    ) -> None:
        self.hardware, self.software, self.calibration = hardware, software, calibration
        self.blocks = Blocks(hardware, software, calibration, precision)

    def estimate(self, job: Job) -> Estimate:
        """Memory and, in closed form, time of a job."""
        return self._estimate(job, step_time(self.blocks, job))

    def refine(self, job: Job) -> Estimate:
        """The same with the pipeline's schedule played action by action."""
        return self._estimate(job, played_step_time(self.blocks, job))

    def _estimate(self, job: Job, time: StepTime) -> Estimate:
        capacity = self.hardware.memory_gib * GIB
        return Estimate(job, time, capacity, self.blocks.kernels.peak, self.blocks)
