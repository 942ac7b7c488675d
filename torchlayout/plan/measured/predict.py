"""What the planner says of measured runs: seconds of a step and bytes of memory beside what came of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchlayout.errors import InputError
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.estimate import Machine
from torchlayout.plan.job import Job
from torchlayout.plan.measured.runs import Run
from torchlayout.plan.memory.peak import GIB, Memory, rank_memories, worst_memory
from torchlayout.plan.shape import Shape
from torchlayout.plan.time.step import step_time


@dataclass(frozen=True, eq=False)
class Prediction:
    """A run with its predicted step and its predicted memory."""

    run: Run
    seconds: float
    peak_bytes: float
    """Of the rank that needs most, with everything on the device."""
    reserved_bytes: float
    """Of the first pipeline rank, as torch's allocator counts: without contexts and libraries' buffers."""
    capacity_bytes: float
    model_flops: float
    """Of a step by the convention of arXiv 2311.05610: 6 N + 12 L h s a token."""
    peak_flops: float
    """What all devices could do in a second."""

    def fits(self, margin_gib: float) -> bool:
        """Whether so much memory is predicted to stay free."""
        return self.peak_bytes + margin_gib * GIB <= self.capacity_bytes

    @property
    def timed(self) -> bool:
        """Whether the run has a step time that counts."""
        return self.run.trusted and self.run.status == "ok" and self.run.step_seconds is not None

    @property
    def measured_seconds(self) -> float:
        """The step time of a run that has one."""
        if self.run.step_seconds is None:
            raise ValueError(f"{self.run.place}: the run has no step time")
        return self.run.step_seconds

    @property
    def measured_mfu(self) -> float:
        """MFU in percent as the source states it; where it does not, from the step time."""
        if self.run.mfu is not None:
            return self.run.mfu
        return 100 * self.model_flops / (self.measured_seconds * self.peak_flops)


class Machines:
    """The machines of some runs under one calibration, or each under the shipped one of its stack and device."""

    def __init__(self, calibration: Calibration | None = None) -> None:
        self.calibration = calibration
        self._known: dict[tuple[str, str, str], Machine] = {}

    def of(self, run: Run) -> Machine:
        """The machine that a run ran on."""
        key = (run.hardware.name, run.software.name, run.job.precision)
        if key not in self._known:
            calibration = self.calibration or Calibration.of(run.software.name, run.hardware)
            self._known[key] = Machine(run.hardware, run.software, calibration, run.job.precision)
        return self._known[key]


def seconds_of(machine: Machine, job: Job) -> float:
    """Seconds of a step alone, for who has no use for the rest of an estimate."""
    return step_time(machine.blocks, job).seconds


def peak_bytes_of(machine: Machine, job: Job) -> float:
    """All memory of the rank that needs most, alone."""
    return worst_memory(machine.blocks, job).bytes


def reserved_bytes_of(machine: Machine, job: Job) -> float:
    """What torch reserves on the first pipeline rank, alone."""
    return _reserved(rank_memories(machine.blocks, job)[0], machine.hardware.memory_gib * GIB)


def _reserved(first: Memory, capacity_bytes: float) -> float:
    """What torch's allocator counts: contexts and buffers of libraries are not its own."""
    return first.bytes - first.base + max(0.0, min(first.spare, capacity_bytes - first.bytes))


def model_flops(run: Run) -> float:
    """FLOPs of a step by the convention of arXiv 2311.05610 for the model as its stack builds it."""
    job = run.job
    shape = Shape.of(job.model, run.software, 1, job.sequence)
    count = shape.layers * (shape.matrices + shape.norms) + shape.embedding + (0 if shape.tied else shape.head)
    return job.batch * job.sequence * (6 * count + 12 * shape.layers * shape.hidden * job.sequence)


def predict(runs: Iterable[Run], machines: Machines) -> tuple[list[Prediction], list[tuple[Run, str]]]:
    """Predictions of the runs that ended well or ran out of memory, and why others have none."""
    found: list[Prediction] = []
    without: list[tuple[Run, str]] = []
    for run in runs:
        if run.status == "error":
            without.append((run, "status error: no result"))
            continue
        try:
            found.append(_predict(run, machines.of(run)))
        except InputError as error:
            without.append((run, f"no job that can be priced: {error}"))
    return found, without


def _predict(run: Run, machine: Machine) -> Prediction:
    estimate = machine.estimate(run.job)
    return Prediction(
        run=run,
        seconds=estimate.time.seconds,
        peak_bytes=estimate.memory.bytes,
        reserved_bytes=_reserved(estimate.ranks[0], estimate.capacity_bytes),
        capacity_bytes=estimate.capacity_bytes,
        model_flops=model_flops(run),
        peak_flops=run.gpus * estimate.peak_flops,
    )


def timed(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those whose run has a step time that counts."""
    return [prediction for prediction in predictions if prediction.timed]
