"""A device and its node as a frozen value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from torchlayout.errors import InputError
from torchlayout.files import read_toml
from torchlayout.layout.words import nearest
from torchlayout.tables import Section, refuse, sentences, shown

DEVICES = Path(__file__).parent / "devices"
FACTS = (
    "peak_flops",
    "memory_gib",
    "memory_bandwidth",
    "intra_node_bandwidth",
    "inter_node_bandwidth",
    "gpus_per_node",
    "multiprocessors",
    "tile",
)
"""The fields that state something of the device, each of which may have a source."""

# TOML has arrays only, and a strict model takes no list for a tuple.
Array = BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
Rate = Annotated[float, Field(ge=1e6, le=1e21)]
Size = Annotated[float, Field(ge=0.01, le=1e6)]
Side = Annotated[int, Field(ge=1, le=4096)]
Words = Annotated[tuple[str, ...], Array]


class Hardware(Section):
    """A device, its peaks without sparsity, its memory, and the links of its node; bytes and FLOP a second."""

    name: str
    """Name for `hardware.name`."""
    aliases: Words = ()
    """Further names for `hardware.name`, of a device in this folder."""
    matches: Words
    """Regular expressions, one of which is the whole name that the driver reports; or none; case does not matter."""
    peak_flops: dict[str, Rate]
    """FLOP/s of dense matrix products by format, in matrix units where it has them; fp32 without TF32."""
    memory_gib: Size
    """Memory of the device in GiB, as the driver reports it or a little less."""
    memory_bandwidth: Rate
    """Bytes/s of the device's memory."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)]
    """Devices in the usual node."""
    intra_node_bandwidth: Rate
    """Bytes/s that a device sends to the others of its node, in one direction."""
    inter_node_bandwidth: Rate
    """Bytes/s that a device sends out of its node, in one direction, in the usual node."""
    multiprocessors: Annotated[int, Field(ge=1, le=4096)]
    """Streaming multiprocessors or compute units."""
    tile: Annotated[tuple[Side, Side], Array] = (256, 128)
    """Rows and columns of the largest tile of a 16-bit matrix product that one multiprocessor works on."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Where a fact is from, by its field: a sentence with the document, its year and, where known, its address."""

    @field_validator("sources")
    @classmethod
    def _of_facts(cls, sources: dict[str, str]) -> dict[str, str]:
        if wrong := [key for key in sources if key not in FACTS]:
            raise refuse(*(f"sources.{key} is the source of no fact; {nearest(key, FACTS)}" for key in wrong))
        return sources

    @classmethod
    def load(cls, name: str) -> Hardware:
        """The device of that name or alias, or the one in a TOML file of that path.

        Raises InputError where it is none.
        """
        if name in names():
            return _read(DEVICES / f"{name}.toml")
        if name.endswith(".toml"):
            return _read(Path(name))
        for device in map(cls.load, names()):
            if name in device.aliases:
                return device
        raise InputError(
            f"hardware.name = {shown(name)} is neither a device nor a .toml file; {nearest(name, ('auto', *names()))}"
        )

    @classmethod
    def detect(cls, device_name: str) -> Hardware | None:
        """The device that a driver reports under this name, such as "NVIDIA A100-SXM4-80GB"; None: not known."""
        # The whole name has to match: "NVIDIA GB200" is no B200, and a MIG slice no A100.
        for name in names():
            device = cls.load(name)
            if any(re.fullmatch(pattern, device_name.strip(), re.IGNORECASE) for pattern in device.matches):
                return device
        return None

    def peak(self, dtype: str) -> float | None:
        """FLOP/s of dense matrix products in a format such as "bf16"; None where the device has none stated."""
        return self.peak_flops.get(dtype)


def names() -> tuple[str, ...]:
    """Names of the devices that are known, without their aliases."""
    return tuple(sorted(path.stem for path in DEVICES.glob("*.toml")))


def _read(path: Path) -> Hardware:
    try:
        return Hardware.model_validate(read_toml(path))
    except ValidationError as error:
        raise InputError(*sentences(error, str(path), Hardware)) from error
