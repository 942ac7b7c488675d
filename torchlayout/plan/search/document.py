"""What `torchlayout plan --json` prints, as frozen values (version 1).

Dataclasses, so that a plan starts without building validators; `validated` and `schema` have pydantic make them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Items = dict[str, float]


class _Table:
    """What pydantic is to know of the classes below."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
    }


@dataclass(frozen=True, kw_only=True)
class Asked(_Table):
    """The question, and what its answer rests on."""

    gpus: int
    """Number of devices."""
    model: dict[str, Any]
    """Fields of the model, and `parameters`."""
    sequence_length: int
    """Tokens in a sequence."""
    global_batch: int
    """Sequences in a step."""
    precision: dict[str, str]
    """Number formats."""
    hardware: str
    """Name of the device."""
    memory_gib: float
    """Memory of a device."""
    margin_gib: float
    """What a layout has to leave of it."""
    gpus_per_node: int
    """Devices in a node."""
    intra_node_bandwidth: float
    """Bytes/s that a device sends inside its node."""
    inter_node_bandwidth: float
    """Bytes/s that a device sends out of it."""
    software: str
    """Profile of the stack."""
    calibration: str
    """Name of the fitted numbers."""
    calibrated_software: str
    """The stack that the numbers are of; empty: of none."""
    calibrated_hardware: str
    """The device that they are of; empty: of none."""
    fitted_on: str
    """What they were fitted on."""
    time_spread: float
    """Standard deviation of the logarithm of predicted over measured step times; within it layouts tie."""
    peak_flops: float
    """FLOP/s of a device that MFU is measured against."""
    flops_convention: str
    """How model FLOPs are counted."""
    fixed: list[str]
    """What `--fix` says."""
    conventions: list[str]
    """What bounds the fields that no `--fix` names."""


@dataclass(frozen=True, kw_only=True)
class Searched(_Table):
    """How much the search looked at."""

    considered: int
    """Legal layouts within the conventions."""
    priced: int
    """Layouts that were priced by closed form."""
    too_large: int
    """Layouts that were found not to fit, priced or not; without what is too slow anyhow."""
    with_context: bool
    """Whether context parallelism was opened because nothing fits without."""
    seconds: float
    """CPU time of the search."""


@dataclass(frozen=True, kw_only=True)
class Predicted(_Table):
    """A layout with its price."""

    label: str
    """Label of the layout."""
    axes: dict[str, int | bool | str]
    """Fields of `torchlayout.layout.Layout`."""
    step_seconds: float
    """Time of a step: the sum of `time`."""
    time: Items
    """Seconds by item, on the slowest rank."""
    tokens_per_second: float
    """Speed of all devices together."""
    mfu: float
    """Model FLOP/s as a part of the peak."""
    peak_memory_bytes: float
    """Memory of the worst rank: the sum of `memory`."""
    worst_rank: int
    """The pipeline rank that needs most."""
    phase: str
    """What that rank does when it needs most."""
    memory: Items
    """Bytes by item, on the worst rank."""
    memory_by_rank: list[Items] = field(default_factory=list)
    """Bytes by item on each pipeline rank; of the explained layout only."""
    tie: bool = False
    """Whether it is as fast as the best within the error of the model."""
    on_front: bool = False
    """Whether nothing that fits is as fast with less memory."""


@dataclass(frozen=True, kw_only=True)
class Near(_Table):
    """A change that makes a layout fit."""

    change: str
    """What is different."""
    label: str
    """The layout then."""
    step_seconds: float
    """Time of a step then."""
    peak_memory_bytes: float
    """Memory of the worst rank then."""


@dataclass(frozen=True, kw_only=True)
class Explained(_Table):
    """One layout by name."""

    label: str
    """Its label."""
    problems: list[str]
    """The rules that it breaks, a sentence each; then nothing else is said."""
    predicted: Predicted | None = None
    """Its price."""
    fits: bool | None = None
    """Whether it leaves the margin."""
    over_bytes: float | None = None
    """By how much it goes above the memory less the margin; below zero: what it leaves."""
    breaks: str | None = None
    """Where it does not fit: the item of memory that breaks it."""
    remedies: list[Near] = field(default_factory=list)
    """Where it does not fit: what would make it, fastest first."""
    slower: float | None = None
    """By which part of the best layout's time it is slower than that."""
    losses: Items = field(default_factory=dict)
    """Seconds by item that it takes longer than the best."""
    sentence: str
    """The same in words."""


@dataclass(frozen=True, kw_only=True)
class Changed(_Table):
    """A change of the question after which another layout is best."""

    change: str
    """What changes."""
    best: str | None
    """The layout that is best then; null: nothing fits."""
    before: str
    """The layout that was best, as it would run then."""
    gain: float | None
    """By which part of the new layout's time the old one is slower then; null: it can't run."""
    note: str
    """Why it can't."""


@dataclass(frozen=True, kw_only=True)
class WhatIf(_Table):
    """What would change the answer."""

    tried: list[str]
    """Every change that was tried."""
    changes: list[Changed]
    """Those after which another layout is best."""


@dataclass(frozen=True, kw_only=True)
class Scaled(_Table):
    """The best layout of a number of devices."""

    gpus: int
    """Number of devices."""
    label: str | None
    """The layout; null: nothing fits or is legal."""
    step_seconds: float | None = None
    """Time of a step."""
    tokens_per_second: float | None = None
    """Speed of all devices together."""
    mfu: float | None = None
    """Model FLOP/s as a part of the peak."""
    efficiency: float | None = None
    """Speed of a device as a part of that on the smallest number of devices that fits."""


@dataclass(frozen=True, kw_only=True)
class Plan(_Table):
    """The answer of `torchlayout plan`."""

    version: Literal[1] = 1
    """Version of this schema; a change that readers notice raises it."""
    asked: Asked
    """The question."""
    searched: Searched
    """How much was looked at."""
    sentence: str
    """The answer in words."""
    layouts: list[Predicted]
    """The layouts that fit, fastest first."""
    front: list[Predicted]
    """Those to choose from by speed and memory: less memory than all that are faster."""
    explained: Explained | None = None
    """The layout of `--explain`."""
    what_if: WhatIf | None = None
    """What `--what-if` found."""
    scaling: list[Scaled] | None = None
    """What `--scaling` found."""

    def json(self) -> str:
        """The text of the document."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)


def validated(text: str) -> Plan:
    """The answer that a document describes; raises pydantic's ValidationError where it is none of this version."""
    return _adapter().validate_json(text)


def schema() -> dict[str, Any]:
    """JSON Schema of the answer, as in docs/plan.schema.json."""
    described = _adapter().json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | described


def _adapter() -> TypeAdapter[Plan]:
    from pydantic import TypeAdapter

    return TypeAdapter(Plan)
