"""index.json: what a checkpoint holds, and where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1
BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1}
"""Of an element, by the names of safetensors."""


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, row-major and contiguous, as bytes [start, end) of a file of the checkpoint's folder."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int
    end: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the whole model or optimizer; its chunks fill `shape` without overlap. dtype as in safetensors."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Index:
    """The state that is no tensor (JSON values), and the tensors by name."""

    state: dict[str, Any]
    tensors: dict[str, StoredTensor]

    def to_json(self) -> str:
        tensors = {name: asdict(tensor) for name, tensor in sorted(self.tensors.items())}
        return json.dumps({"format": FORMAT, "state": self.state, "tensors": tensors}, allow_nan=False) + "\n"

    def check(self, files: Mapping[str, Any]) -> None:
        """Raises ValueError unless every tensor is whole, and in these files."""
        for name, tensor in self.tensors.items():
            size = BYTES[tensor.dtype]
            if sum(math.prod(chunk.shape) for chunk in tensor.chunks) != math.prod(tensor.shape):
                raise ValueError(f"the chunks of {name} are not the whole of {tensor.shape}")
            for chunk in tensor.chunks:
                if chunk.file not in files or chunk.end - chunk.start != math.prod(chunk.shape) * size:
                    raise ValueError(f"a chunk of {name} is not in the files that were committed")
                if not 0 <= chunk.start <= chunk.end <= files[chunk.file]["bytes"]:
                    raise ValueError(f"a chunk of {name} is outside {chunk.file}")

    @staticmethod
    def from_json(text: str) -> Index:
        """The reverse; raises ValueError, TypeError or KeyError where the text is no index of this format."""
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}, this version reads {FORMAT}")
        return Index(raw["state"], {name: _tensor(tensor) for name, tensor in raw["tensors"].items()})


def _tensor(raw: dict[str, Any]) -> StoredTensor:
    chunks = (
        Chunk(tuple(chunk["offsets"]), tuple(chunk["shape"]), chunk["file"], chunk["start"], chunk["end"])
        for chunk in raw["chunks"]
    )
    return StoredTensor(raw["dtype"], tuple(raw["shape"]), tuple(chunks))
