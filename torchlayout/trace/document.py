"""What breakdown.json holds and `torchlayout trace --json` prints, as types (version 1).

The analysis makes plain dictionaries; `validated` and `schema` have pydantic hold them against these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Share = Literal[
    "compute/gemm",
    "compute/attention",
    "compute/elementwise",
    "compute/other",
    "communication/tp",
    "communication/cp",
    "communication/pp",
    "communication/fsdp",
    "communication/dp",
    "communication/world",
    "communication/other",
    "bubble/warmup",
    "bubble/steady",
    "bubble/drain",
    "idle",
    "data",
    "optimizer",
    "checkpoint",
]
Axis = Literal["tp", "cp", "pp", "fsdp", "dp", "world", "other"]
Seconds = dict[Share, float]


class RankStep(TypedDict):
    """A rank's part of a step."""

    rank: int
    """Its number in the world."""
    start: float
    """Seconds after the first rank's start."""
    seconds: float
    """How long its step is."""
    shares: Seconds
    """Exclusive; they sum to `seconds`. An absent name is 0."""
    hidden: Seconds
    """Communication behind what else is charged; not in the sum."""
    overlap: float | None
    """Hidden communication as a part of all; null without any."""
    collectives: dict[str, float]
    """Seconds of exposed communication by collective."""
    waiting: Seconds
    """The part of exposed communication before the last known rank had come to it."""
    flops_per_second: float | None
    """Model FLOP/s while it computes; null where the model is not known."""


class StepRow(TypedDict):
    """A step on all ranks that were traced in it."""

    step: int
    """Its number."""
    seconds: float
    """The longest rank's."""
    ranks: list[RankStep]
    """By rank."""


class Worst(TypedDict):
    """The longest step of a rank."""

    step: int
    """Its number."""
    rank: int
    """Whose."""
    seconds: float
    """How long."""


class StageRow(TypedDict):
    """A stage on a rank that holds it; means over steps."""

    stage: int
    """From 0."""
    rank: int
    """Who computes it."""
    forward_seconds: float
    """Of a micro-batch."""
    backward_seconds: float
    """Of a micro-batch; of a split backward the input's half."""
    weight_seconds: float
    """Of a micro-batch; 0 where a backward is not split."""
    micro_batches: int
    """In a step."""


class Pipeline(TypedDict):
    """Bubbles as fractions of the pipeline's makespan."""

    bubble: float | None
    """Measured; mean over ranks and steps. Null where no pipeline was traced on all its ranks."""
    schedule: float | None
    """The schedule's own, were stages as fast as they are on average and messages free; null where ranks miss."""
    by_rank: dict[str, float]
    """Measured, by rank."""


class CollectiveRow(TypedDict):
    """A kind of transfer; means of a rank and a step."""

    collective: str
    """all_gather, send, ..."""
    axis: Axis
    """Which groups of ranks."""
    group_size: int
    """Ranks that take part; 0 where the trace does not say."""
    count: float
    """How many."""
    bytes: float
    """The larger of input and output, summed; 0 where the trace does not say."""
    seconds: float
    """In which one at least was under way, hidden or exposed."""
    exposed_seconds: float
    """The part that is in the shares; over the rows of an axis they sum to its share."""
    bus_bytes_per_second: float | None
    """Bytes/s of a link, as nccl-tests count them, from when the last known rank had come; null without bytes."""


KernelRow = TypedDict(
    "KernelRow",
    {
        "name": str,
        "class": Literal["gemm", "attention", "elementwise", "other", "communication"],
        "count": int,
        "seconds": float,
    },
)
"""All runs of a kernel, or of a host's operator, on all ranks."""


class CauseRow(TypedDict):
    """What time is lost to."""

    kind: Literal["straggler", "data", "communication", "bubble", "imbalance", "idle", "checkpoint", "optimizer"]
    """What it is."""
    rank: int | None
    """Whose fault; null where it is nobody's alone."""
    seconds: float
    """Of a step."""
    sentence: str
    """For a person."""


class Foretold(TypedDict):
    """What the planner says of the layout."""

    seconds: float
    """Of a step."""
    shares: Seconds
    """They sum to `seconds`."""


class Breakdown(TypedDict):
    """Where the time of each traced step went."""

    version: Literal[1]
    """Of this format."""
    traces: str
    """The folder, or the file, that was analysed."""
    layout: str | None
    """Label of the run's layout; null for traces of something else."""
    world: int | None
    """Ranks of the run; null where no trace says."""
    ranks: list[int]
    """Those that were traced."""
    device: Literal["cpu", "cuda", "rocm"]
    """What computed."""
    device_name: str | None
    """What it calls itself."""
    steps: list[StepRow]
    """In their order."""
    mean: Seconds
    """Fractions of the step, over steps and ranks; they sum to 1."""
    worst: Worst | None
    """The longest."""
    stages: list[StageRow]
    """Where micro-batches are marked."""
    pipeline: Pipeline | None
    """Null without a pipeline."""
    collectives: list[CollectiveRow]
    """Those that take longest first."""
    kernels: list[KernelRow]
    """Every name, longest first; what no name tells is `other`."""
    causes: list[CauseRow]
    """The largest loss first."""
    untraced_seconds: float | None
    """Median step of the run that was neither warm-up nor profiled; null where it has none, or is no run of ours."""
    predicted: Foretold | None
    """Null where the planner cannot say."""
    memory: list[dict[str, Any]]
    """The files rank<R>.memory.json."""
    notes: list[str]
    """What was left out, and why."""


def validated(document: Mapping[str, Any]) -> Breakdown:
    """The document; raises pydantic.ValidationError for one that is not of this version."""
    return _adapter().validate_json(json.dumps(document, allow_nan=False))


def schema() -> dict[str, Any]:
    """JSON Schema of the document, as in docs/breakdown.schema.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | _adapter().json_schema(mode="serialization")


def _adapter() -> TypeAdapter[Breakdown]:
    from pydantic import ConfigDict, TypeAdapter, with_config

    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
    for table in (
        RankStep,
        StepRow,
        Worst,
        StageRow,
        Pipeline,
        CollectiveRow,
        KernelRow,
        CauseRow,
        Foretold,
        Breakdown,
    ):
        with_config(config)(table)
    return TypeAdapter(Breakdown)
