"""The sections of a configuration file as frozen, validated values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.tables import Section, refuse, shown

LARGEST = 2**53  # whole numbers above it do not survive a float, a JSON reader or a TensorBoard scalar

Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Dimension = Annotated[int, Field(ge=1, le=2**24)]
Degree = Annotated[int, Field(ge=1, le=2**20)]
Type = Literal["bf16", "fp32", "fp64"]
WIDTH = {"bf16": 2, "fp32": 4, "fp64": 8}


class RunSection(Section):
    """Where a run is written, and the seed it starts from."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=200)] = "run"
    """Folder of the run inside `directory`."""
    directory: Annotated[str, Field(min_length=1, pattern=r"^[^\x00]+$")] = "runs"
    """Folder that holds the runs, relative to the current one."""
    seed: Whole = 1234
    """Seed of the initial weights and of the order of the samples."""


class DataSection(Section):
    """Which tokens are trained on, and how they are cut into sequences."""

    path: Annotated[str, Field(min_length=1)]
    """Folder that `torchlayout data prepare` wrote, relative to the current one."""
    sequence_length: Dimension = 2048
    """Tokens in a sequence."""
    shuffle: bool = True
    """Whether each epoch visits the samples in its own random order."""
    workers: Annotated[int, Field(ge=0, le=256)] = 2
    """Processes of each rank that read ahead; 0 reads in the training process."""
    evaluation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of the samples, from the end of the corpus, that is held out for evaluation."""
    within_documents: bool = False
    """Whether attention stays inside documents."""


class BatchSection(Section):
    """What one optimizer step consumes, in every layout."""

    global_size: Annotated[int, Field(ge=1, le=2**30)] = 32
    """Sequences in an optimizer step."""


class LayoutSection(Section):
    """How the run is laid out over the ranks: a label, or its parts; neither means `fsdp<world>`."""

    label: str | None = None
    """A label such as `pp2-fsdp2-tp2+sp`; it excludes every other key of this section."""
    pipeline: Degree | None = None
    """Pipeline stages' ranks."""
    replicate: Degree | None = None
    """Replicas of the whole model (plain data parallelism)."""
    shard: Degree | None = None
    """Ranks over which FSDP shards the parameters."""
    context: Degree | None = None
    """Ranks over which a sequence is cut."""
    tensor: Degree | None = None
    """Ranks over which single matrices are cut."""
    micro_batch: Degree | None = None
    """Sequences in a micro-batch of one data rank."""
    sequence_parallel: bool | None = None
    """Whether norms and residuals are cut along the sequence over the tensor ranks."""
    schedule: str | None = None
    """Pipeline schedule: gpipe, 1f1b, interleaved, looped, zerobubble, zbv or dualpipev."""
    virtual_stages: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Pipeline stages on each rank."""
    context_method: str | None = None
    """How attention crosses context ranks: ring or ulysses."""
    recompute: str | None = None
    """What is recomputed in the backward pass: none, ckpt, ckptK, ckptattn or selective."""
    zero: Annotated[int, Field(ge=1, le=3)] | None = None
    """What is sharded over shard x context: 1, 2 or 3; left out: 3 without a pipeline, 2 with one."""

    @property
    def given(self) -> dict[str, Any]:
        """The keys that were given, as keyword arguments of `Layout`."""
        return self.model_dump(exclude_none=True)

    def layout(self, world: int, **kernels: Any) -> Layout:
        """The layout this section describes; `kernels` fills what a label leaves out.

        Raises InputError where it is no layout.
        """
        given = self.given
        if not given:
            return Layout(shard=world, **kernels)
        if self.label is not None:
            return Layout.parse(self.label, **kernels)
        return Layout(**given, **kernels)

    @model_validator(mode="after")
    def _is_a_layout(self) -> LayoutSection:
        parts = sorted(set(self.given) - {"label"})
        if self.label is not None and parts:
            raise refuse(
                f"layout.label cannot stand beside {_all(f'layout.{part}' for part in parts)}; "
                "name the layout by a label or by its parts"
            )
        try:
            self.layout(world=1)
        except InputError as error:
            raise refuse(*error.problems) from error
        return self


class KernelsSection(Section):
    """Which implementation computes each part of the model, where the layout's label does not say."""

    attention: Literal["sdpa", "flash", "math", "flex"] = "sdpa"
    """Attention: torch's scaled_dot_product_attention, the flash-attn package, a score matrix, or flex."""
    norm: Literal["fused", "eager"] = "fused"
    """RMSNorm as one operation, or from single ones (the ablation of 2311.05610)."""
    loss: Literal["chunked", "plain"] = "chunked"
    """Cross entropy over chunks of tokens, never holding all fp32 logits, or over all of them."""
    compile: bool = False
    """Whether torch.compile compiles each block."""


class Precision(Section):
    """The number formats; master weights and optimizer states take the wider of fp32 and `parameters`."""

    parameters: Type = "bf16"
    """Format in which the model computes."""
    reduce: Type = Field(default_factory=lambda given: max("fp32", given["parameters"], key=WIDTH.__getitem__))
    """Format in which gradients are reduced; left out: the wider of fp32 and `parameters`."""

    @model_validator(mode="after")
    def _reduces_without_narrowing(self) -> Precision:
        if WIDTH[self.reduce] < WIDTH[self.parameters]:
            legal = [name for name, width in WIDTH.items() if width >= WIDTH[self.parameters]]
            raise refuse(
                f'precision.reduce = "{self.reduce}" is narrower than precision.parameters = '
                f'"{self.parameters}"; legal: {", ".join(legal)}'
            )
        return self


def _pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSection(Section):
    """AdamW and its learning-rate schedule."""

    learning_rate: Annotated[float, Field(gt=0, le=1e3)] = 3e-4
    """Highest learning rate, reached after the warmup."""
    betas: Annotated[tuple[Beta, Beta], BeforeValidator(_pair)] = (0.9, 0.95)
    """Decay of the running mean of the gradient and of its square."""
    weight_decay: Annotated[float, Field(ge=0, le=1e3)] = 0.1
    """Decoupled weight decay."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the denominator of the update."""
    clip_norm: Annotated[float, Field(gt=0, le=1e30)] = 1.0
    """Largest norm of the gradient over all parameters; larger ones are scaled down to it."""
    warmup_steps: Whole = 0
    """Steps over which the learning rate rises linearly to its highest value."""
    decay: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """Shape after the warmup; wsd (warmup, stable, decay) falls in the last `decay_fraction` only."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Part of the steps in which wsd decays."""
    minimum_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Last learning rate as a part of the highest."""
    fused: bool | None = None
    """Whether one kernel updates all parameters; left out: where the device has it."""


class TrainSection(Section):
    """The loop."""

    steps: Count = 100
    """Optimizer steps."""
    log_every: Count = 1
    """Steps between two lines on the terminal; metrics.jsonl has every step."""
    evaluate_every: Whole = 0
    """Steps between two evaluations on the held-out samples; 0 is never."""
    evaluate_batches: Count = 8
    """Global batches in an evaluation."""
    timeout_seconds: Annotated[float, Field(gt=0, le=1e7)] = 600.0
    """Seconds after which a collective that does not finish ends the run."""
    deterministic: bool = False
    """Whether only deterministic kernels are used."""
    stop_after_non_finite: Count = 5
    """Skipped steps in a row (loss or gradient not finite) after which the run stops."""
    wall_time_limit_minutes: Annotated[float, Field(gt=0, le=1e7)] | None = None
    """Minutes after the start of the run at which it saves and ends, at the next end of a step; left out: no limit."""
    host_memory_limit_gib: Annotated[float, Field(gt=0, le=2**20)] | None = None
    """Memory that each rank of a CPU run may allocate, under Linux; left out: no limit."""


class CheckpointSection(Section):
    """When the state of training is saved, and what a run continues."""

    every: Whole = 0
    """Steps between two checkpoints; also at the last step and when the run is told to stop; 0 is never."""
    keep: Count = 3
    """Newest checkpoints that are kept."""
    asynchronous: bool = False
    """Whether training goes on, from a copy in host memory, while a checkpoint is written."""
    resume: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")] = "auto"
    """What to continue: `auto` (the newest sound checkpoint of this run), `never`, or the folder of a checkpoint."""


def _ranks(value: Any) -> Any:
    """The value where it is legal; the one sentence on ranks says all that they may be."""
    ranks = tuple(value) if isinstance(value, list | tuple) else ()
    legal = all(type(rank) is int and 0 <= rank <= LARGEST for rank in ranks) and len(set(ranks)) == len(ranks)
    if value != "all" and not (ranks and legal):
        raise refuse(f'profile.ranks = {shown(value)} must be "all" or a list of different ranks, such as [0, 3]')
    return ranks or value


class ProfileSection(Section):
    """Which steps are profiled, and on which ranks."""

    steps: Whole = 0
    """Steps that are profiled; 0 is none."""
    start_step: Count = 5
    """First step that is profiled, from 1; the first steps of a run warm up."""
    ranks: Annotated[Literal["all"] | tuple[Whole, ...], BeforeValidator(_ranks)] = "all"
    """Ranks that write a trace: `all`, or a list of them."""
    memory: bool = False
    """Whether the memory of each phase is written too, and on CUDA a snapshot of the allocator."""

    def problem_within(self, last_step: int) -> str | None:
        """What is wrong in a run of so many steps, or None."""
        if self.steps == 0 or self.start_step + self.steps - 1 <= last_step:
            return None
        if self.start_step > last_step:
            return f"profile.start_step = {self.start_step} is above train.steps = {last_step}; legal: 1 to {last_step}"
        return (
            f"profile.steps = {self.steps} from profile.start_step = {self.start_step} reach step "
            f"{self.start_step + self.steps - 1}, above train.steps = {last_step}; "
            f"legal: 0 to {last_step - self.start_step + 1}"
        )

    def problem_on(self, world: int) -> str | None:
        """What is wrong on so many ranks, or None."""
        beyond = [rank for rank in self.ranks if isinstance(rank, int) and rank >= world]
        if self.steps == 0 or not beyond:
            return None
        there = "is 1 rank; legal: 0" if world == 1 else f"are {world} ranks; legal: 0 to {world - 1}"
        return f"profile.ranks = {shown(self.ranks)} has rank {beyond[0]}, but there {there}"


class HardwareSection(Section):
    """What the run is measured against."""

    name: Annotated[str, Field(min_length=1)] = "auto"
    """A device of `torchlayout.hardware`, a TOML file of one, or `auto` to ask the device."""


def _all(words: Any) -> str:
    return ", ".join(words)
