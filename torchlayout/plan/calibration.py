"""The fitted numbers of a stack on a device, each with a prior, and what they were fitted on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, get_type_hints

from pydantic import ConfigDict, Field, ValidationError

from torchlayout.errors import InputError
from torchlayout.files import read_toml
from torchlayout.hardware import Hardware
from torchlayout.layout.words import nearest
from torchlayout.tables import Section, sentences, shown

SHIPPED = Path(__file__).parent / "calibrations"


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the logarithm of a number before anything is measured."""

    deviation: float


# Physics or a datasheet leaves little room.
Known = Annotated[float, Field(ge=1e-12, le=1e12), Spread(0.1)]
# The mechanism is known, its size roughly.
Likely = Annotated[float, Field(ge=1e-12, le=1e12), Spread(0.3)]
# It depends on the stack and its environment.
Unsure = Annotated[float, Field(ge=1e-12, le=1e12), Spread(0.7)]
# Hardly more than its order of magnitude is known.
Wide = Annotated[float, Field(ge=1e-12, le=1e12), Spread(1.2)]
# An accounting identity, but for roundings.
Nearly = Annotated[float, Field(ge=1e-12, le=1e12), Spread(0.02)]


class Numbers(Section):
    """A table of fitted numbers; nothing shows their docstrings, and reading them would take time at each start."""

    model_config = ConfigDict(use_attribute_docstrings=False)


class Compute(Numbers):
    """Matrix products, attention and element-wise work."""

    gemm_efficiency: Known = 0.85
    """Part of the peak that a large matrix product reaches."""
    rows_at_half: Likely = 150.0
    """Rows at which a product reaches half of that; likewise for columns and depth."""
    columns_at_half: Likely = 60.0
    depth_at_half: Likely = 60.0
    wave_exponent: Known = 0.95
    """How much of the work of half-empty waves of tiles is lost: 0 nothing, 1 all."""
    flash1: Known = 0.31
    """Part of the peak that attention kernels reach on causal FLOPs."""
    flash2: Known = 0.58
    flash: Likely = 0.45
    scores: Known = 0.60
    """The same for the two products around a score matrix in memory."""
    attention_backward: Known = 3.1
    """Backward over forward of a flash kernel."""
    score_bytes: Known = 20.0
    """Traffic of a score in memory, forward, from single kernels; backward takes double."""
    fused_score_bytes: Known = 11.0
    """The same with a fused softmax."""
    memory_efficiency: Known = 0.70
    """Part of the memory bandwidth that element-wise kernels reach."""
    eager_norm_bytes: Known = 94.0
    """Traffic of both norms of a block, bytes a token and hidden unit, from single kernels."""
    fused_norm_bytes: Known = 9.6
    residual_bytes: Likely = 8.0
    attention_copy_bytes: Known = 24.0
    """Rotation and copies around attention, bytes a token and hidden unit, over tensor ranks."""
    activation_bytes: Known = 9.0
    """SwiGLU or GELU, bytes a token and inner unit."""
    elementwise_backward: Known = 1.8
    """Backward over forward of element-wise work."""
    logit_bytes: Likely = 40.0
    """Traffic of the head's loss, bytes a token and word."""
    accumulate_bytes: Likely = 7.0
    """Adding a micro-batch's gradient, bytes a parameter."""
    compiled_elementwise: Likely = 0.6
    """What torch.compile leaves of element-wise traffic."""


class Launch(Numbers):
    """The CPU that launches kernels, and work that does not grow with anything."""

    block_seconds: Unsure = 0.9e-3
    """CPU time to launch a block's forward with norms from single kernels."""
    fused_norm: Likely = 0.75
    """What a fused norm leaves of it."""
    backward: Likely = 1.3
    """Backward over forward."""
    tensor_factor: Likely = 1.2
    """More launches with tensor parallelism, for the collectives."""
    block_fixed_seconds: Unsure = 0.15e-3
    """Added to each block and micro-batch whatever bounds it."""
    recompute_fixed_seconds: Unsure = 0.2e-3
    """Added to each recomputed block."""
    floor_seconds: Unsure = 4e-3
    """Where a stack has it: least time of a block, forward and backward, on several nodes."""
    floor_rank_seconds: Unsure = 2.2e-3
    """Added to it for each tensor rank."""
    floor_node_factor: Likely = 1.25
    """What that grows by where tensor ranks are on several nodes."""
    stage_seconds: Unsure = 2e-3
    """Added to each stage and micro-batch."""
    step_seconds: Wide = 0.15
    """Added to each step."""
    optimizer_block_seconds: Unsure = 1e-4
    """Added to each step for each block of the rank: launches of the optimizer."""


class Links(Numbers):
    """What collectives reach of the links."""

    tensor_efficiency: Known = 0.61
    """Bus bandwidth of collectives inside a node, part of the link."""
    latency_seconds: Likely = 28e-6
    """A collective inside a node, for each doubling of its ranks."""
    node_latency_seconds: Unsure = 60e-6
    """Added on several nodes for each step of the ring."""
    node_efficiency: Unsure = 0.8
    """Bandwidth of a group beyond a node, part of its devices' links out of the node."""
    nodes_at_half: Unsure = 10.0
    """Nodes at which a ring has half of its bandwidth."""
    hop_seconds: Unsure = 1e-3
    """Activations or gradients to the next pipeline rank: fixed part."""
    hop_efficiency: Unsure = 0.28
    """Their bandwidth, part of one device's link out of the node."""
    overlap: Likely = 0.15
    """What hidden communication still costs: slows the work it hides behind by this part of itself."""


class State(Numbers):
    """The optimizer's step."""

    owned_bytes: Likely = 60.0
    """Traffic of the optimizer, bytes a parameter that the rank owns."""
    held_bytes: Likely = 24.0
    """Traffic of clipping, scaling and copies, bytes a parameter that the rank holds."""


class Memory(Numbers):
    """Bytes that formulas alone do not give."""

    eager_norm_bytes: Likely = 11.0
    """What norms from single kernels keep, bytes a token and hidden unit over both, besides the residual."""
    attention_bytes: Known = 10.8
    """Queries, keys, values, their rotations and the output, bytes a token and hidden unit."""
    inner_tensors: Known = 4.1
    """Inner tensors that the feed-forward part keeps, in the parameters' format."""
    score_bytes: Likely = 6.0
    """What unfused attention keeps of a score."""
    fused_score_bytes: Likely = 4.0
    logit_bytes: Likely = 19.3
    """The loss at its peak, bytes a token and word."""
    gathered_logit_bytes: Likely = 5.7
    """Besides where logits are gathered over tensor ranks."""
    work_hidden: Unsure = 8.0
    """Work space of backward, bytes a token and hidden unit."""
    work_inner: Likely = 4.0
    """The same, bytes a token and inner unit over tensor ranks."""
    library_gib: Unsure = 0.03
    """Work space of libraries that they take from torch's allocator."""
    flight_bytes: Unsure = 8.0
    """What lies idle between tensors for each micro-batch in flight but one, bytes a token and hidden unit."""
    refill: Unsure = 0.1
    """What lies idle once later micro-batches fill the place of earlier ones, part of the activations."""
    stream_bytes: Unsure = 50.0
    """What lies idle where tensors wait for another stream to be through, bytes a token and hidden unit."""
    pressed: Unsure = 0.3
    """Part of what lies idle that still does when memory is short."""
    reuse: Known = 0.2
    """Part of the smaller of two peaks that the allocator can't reuse for the larger."""
    fragmentation: Nearly = 1.02
    """Reserved over allocated."""
    base_gib: Known = 1.4
    """Context and libraries."""
    tensor_gib: Likely = 0.5
    """Buffers of tensor collectives."""
    pipeline_gib: Likely = 0.8
    """Buffers of pipeline transfers."""
    reduced: Known = 0.5
    """What reducing beside backward takes outside of torch's allocator, part of the gradients that are reduced."""
    data_gib: Likely = 0.3
    """Buffers of data-parallel collectives."""


class Calibration(Numbers):
    """Fitted numbers; what is left out stands at its prior."""

    name: str = "priors"
    """Name for `--calibration`."""
    software: str = ""
    """The software profile that it is for."""
    hardware: str = ""
    """The device that it is for."""
    fitted_on: str = "nothing: priors alone"
    """Files, rows and the command."""
    time_spread: Annotated[float, Field(gt=0, lt=1)] = 0.08
    """Standard deviation of the logarithm of predicted over measured step times that it was fitted on."""
    compute: Compute = Compute()
    launch: Launch = Launch()
    links: Links = Links()
    state: State = State()
    memory: Memory = Memory()

    @classmethod
    def load(cls, name: str) -> Calibration:
        """The calibration of that name or in a TOML file of that path; raises InputError where it is none."""
        if name == "priors":
            return cls()
        if name in names():
            return _shipped(name)
        if name.endswith(".toml"):
            return _read(Path(name))
        raise InputError(
            f"calibration {shown(name)} is neither shipped nor a .toml file; {nearest(name, ('priors', *names()))}"
        )

    @classmethod
    def of(cls, software: str, hardware: Hardware) -> Calibration:
        """The shipped calibration of a stack on a device, else on the device whose peak is nearest, or the priors."""
        of_stack = [found for name in names() if (found := cls.load(name)).software == software]
        peak = hardware.peak("bf16") or max(hardware.peak_flops.values())

        def distance(calibration: Calibration) -> tuple[bool, float]:
            other = Hardware.load(calibration.hardware).peak("bf16") or peak
            return calibration.hardware != hardware.name, abs(math.log(other / peak))

        return min(of_stack, key=distance, default=cls())


PARTS: dict[str, type[Section]] = {
    "compute": Compute,
    "launch": Launch,
    "links": Links,
    "state": State,
    "memory": Memory,
}


def spreads() -> dict[str, float]:
    """Every number by its name, such as "links.overlap", with the spread of its prior."""
    found: dict[str, float] = {}
    for part, section in PARTS.items():
        for name, hint in get_type_hints(section, include_extras=True).items():
            metadata = getattr(hint, "__metadata__", ())
            found |= {f"{part}.{name}": item.deviation for item in metadata if isinstance(item, Spread)}
    return found


def values(calibration: Calibration) -> dict[str, float]:
    """Every number by its name."""
    return {name: getattr(getattr(calibration, name.split(".")[0]), name.split(".")[1]) for name in spreads()}


def replaced(calibration: Calibration, numbers: dict[str, float]) -> Calibration:
    """The calibration with some numbers, by name, replaced."""
    tables: dict[str, dict[str, float]] = {}
    for name, value in numbers.items():
        part, key = name.split(".")
        tables.setdefault(part, {})[key] = value
    parts = {part: getattr(calibration, part).model_copy(update=table) for part, table in tables.items()}
    return calibration.model_copy(update=parts)


@cache
def _shipped(name: str) -> Calibration:
    return _read(SHIPPED / f"{name}.toml")


@cache
def names() -> tuple[str, ...]:
    """Names of the calibrations that are shipped."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def _read(path: Path) -> Calibration:
    try:
        return Calibration.model_validate(read_toml(path))
    except ValidationError as error:
        raise InputError(*sentences(error, str(path), Calibration)) from error
