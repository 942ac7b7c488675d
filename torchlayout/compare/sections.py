"""The tables of a study file as frozen, validated values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from torchlayout.compare import launcher
from torchlayout.config.sections import Count, Degree, Whole
from torchlayout.tables import Section, refuse


def _several(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else (value,)


Degrees = Annotated[tuple[Degree, ...], Field(min_length=1), BeforeValidator(_several)]
Words = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_several)]
Switches = Annotated[tuple[bool, ...], Field(min_length=1), BeforeValidator(_several)]


class SweepSection(Section):
    """Values of the fields of a layout; every combination of them is a layout of the study."""

    pipeline: Degrees | None = None
    """Pipeline ranks."""
    replicate: Degrees | None = None
    """Replicas of the whole model."""
    shard: Degrees | None = None
    """FSDP ranks; left out: what the other degrees leave of the ranks."""
    context: Degrees | None = None
    """Ranks over which a sequence is cut."""
    tensor: Degrees | None = None
    """Ranks over which single matrices are cut."""
    micro_batch: Degrees | None = None
    """Sequences in a micro-batch."""
    sequence_parallel: Switches | None = None
    """Sequence parallelism on and off."""
    schedule: Words | None = None
    """Pipeline schedules."""
    virtual_stages: Degrees | None = None
    """Stages on each pipeline rank."""
    context_method: Words | None = None
    """ring, ulysses."""
    recompute: Words | None = None
    """none, ckpt, ckptK, ckptattn, selective."""
    zero: Degrees | None = None
    """1, 2, 3."""
    attention: Words | None = None
    """Attention kernels; left out: that of [kernels]."""
    norm: Words | None = None
    """Norm kernels; left out: that of [kernels]."""
    compile: Switches | None = None
    """Compilation on and off; left out: as [kernels] says."""

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """The fields that were given, in the order of the layout's fields."""
        return self.model_dump(exclude_none=True)


PROFILED_STEPS = 2
"""Steps at the end of a run that are traced where traces are asked for."""


class CompareSection(Section):
    """How the layouts are run."""

    nproc: Annotated[int, Field(ge=1, le=4096)]
    """Ranks on each node."""
    nnodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Nodes."""
    steps: Count
    """Optimizer steps of each run."""
    warmup_steps: Whole = 2
    """First steps of a run that do not count as speed."""
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    """Runs of each layout; three or more give a confidence interval."""
    order: Literal["interleaved", "sequential"] = "interleaved"
    """A B C A B C, so that a drifting machine favours no layout, or A A B B C C."""
    timeout_seconds: Annotated[float, Field(gt=0, le=1e7)] = 3600.0
    """Seconds after which a run that has not ended is ended."""
    host_memory_limit_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory that each rank of a CPU run may allocate; left out: no limit."""
    launcher: Annotated[str, Field(min_length=1)] = "torchrun"
    """`torchrun`, `srun` (inside a Slurm allocation), or a command in which {command} stands for the training."""
    profile: bool = False
    """Whether the last steps of each run are traced; they then do not count as speed."""

    @model_validator(mode="after")
    def _can_be_run(self) -> CompareSection:
        problems = launcher.problems(self.launcher, self.nnodes)
        if self.warmup_steps >= self.steps:
            problems.append(
                f"compare.warmup_steps = {self.warmup_steps} leaves none of compare.steps = {self.steps} to measure; "
                f"legal: 0 to {self.steps - 1}"
            )
        elif self.warmup_steps >= self.last_measured_step:
            problems.append(
                f"compare.profile = true traces the last {PROFILED_STEPS} steps, and compare.warmup_steps = "
                f"{self.warmup_steps} then leaves none of compare.steps = {self.steps} to measure; "
                f"set compare.steps to {self.warmup_steps + PROFILED_STEPS + 1} or more"
            )
        if problems:
            raise refuse(*problems)
        return self

    @property
    def last_measured_step(self) -> int:
        """The last step of a run that counts as speed."""
        return self.steps - PROFILED_STEPS if self.profile else self.steps


class StudyKeys(Section):
    """The keys of a study file that stand above its tables."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=200)]
    """Folder of the study inside `directory`."""
    directory: Annotated[str, Field(min_length=1)] = "studies"
    """Folder that holds the studies, relative to the current one."""
    layouts: Words | None = None
    """Labels of the layouts; it excludes [sweep]."""
