"""Initial weights from (seed, fully qualified name, block of rows): the same bits in every layout.

Each block of BLOCK_ROWS rows of a parameter has its own generator, so that a rank draws only the blocks its shard
touches and never the whole tensor. Bits are the same for one device type; CPU and CUDA generators differ.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig


BLOCK_ROWS = 1024
STANDARD_DEVIATION = 0.02


@dataclass(frozen=True)
class Held:
    """Which part of a parameter is on this rank: `slices` of the whole, and whether another rank has it as well."""

    local: Tensor
    slices: tuple[slice, ...]
    duplicate: bool


@torch.no_grad()
def initialize(module: nn.Module, model: ModelConfig, seed: int) -> None:
    """Fill every parameter of a (sharded, partial) Llama in place.

    Norms are 1; matrices are normal with deviation 0.02, those that write to the residual stream 0.02 / sqrt(2 L).
    """
    for name, parameter in module.named_parameters():
        if model.tie_word_embeddings and name == "head.output.weight":
            name = "embedding.weight"  # a pipeline's last stage holds a copy of its own
        part = held_part(parameter)
        if parameter.ndim == 1:
            part.local.fill_(1.0)
            continue
        residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        deviation = STANDARD_DEVIATION / (math.sqrt(2 * model.num_hidden_layers) if residual else 1.0)
        _draw(part, parameter.shape[0], parameter.shape[1], f"{seed}:{name}", deviation)


def held_part(parameter: Tensor, tensor_rank: int = 0) -> Held:
    """This rank's part of a DTensor (or the whole of a plain tensor).

    tensor_rank tells duplicates of a parameter that the tensor axis does not cut, and whose mesh leaves it out.

    The tensor axis cuts first and the data axes cut what it left, whatever the order of the mesh's axes.
    """
    if not isinstance(parameter, DTensor):
        return Held(parameter, tuple(slice(0, size) for size in parameter.shape), duplicate=tensor_rank != 0)
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names or ()
    duplicate = tensor_rank != 0 and "tp" not in names
    bounds = [(0, size) for size in parameter.shape]
    for axis in sorted(range(mesh.ndim), key=lambda axis: names[axis] != "tp"):
        placement, coordinate = parameter.placements[axis], mesh.get_local_rank(axis)
        # A strided shard (data axis over a tensor-parallel parameter) is no subclass of Shard, but has its `dim`.
        dim = getattr(placement, "dim", None)
        if dim is None:
            duplicate |= coordinate != 0
        else:
            start, end = bounds[dim]
            bounds[dim] = _chunk(start, end, mesh.size(axis), coordinate)
    slices = tuple(slice(*bound) for bound in bounds)
    return Held(parameter.to_local(), slices, duplicate)


def weights_digest(named_parameters: Iterable[tuple[str, Tensor]]) -> int:
    """Sum modulo 2^64 of hash(name, element number, bits) over this rank's part of the parameters.

    The sum over ranks, each element counted once, is the same in every layout.
    """
    return sum(_digest(name, parameter) for name, parameter in named_parameters) % 2**64


def _chunk(start: int, end: int, parts: int, index: int) -> tuple[int, int]:
    """The index-th piece as torch.chunk cuts: pieces of equal size, the last ones shorter or empty."""
    step = math.ceil((end - start) / parts)
    return min(start + step * index, end), min(start + step * (index + 1), end)


def _draw(part: Held, rows: int, columns: int, key: str, deviation: float) -> None:
    first, last = part.slices[0].start, part.slices[0].stop
    for block in range(first // BLOCK_ROWS, math.ceil(last / BLOCK_ROWS)):
        start, end = block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, rows)
        generator = torch.Generator(part.local.device).manual_seed(_hash(f"{key}:{block}") % 2**63)
        drawn = torch.empty(end - start, columns, device=part.local.device)
        drawn.normal_(0.0, deviation, generator=generator)
        low, high = max(first, start), min(last, end)
        part.local[low - first : high - first].copy_(drawn[low - start : high - start, part.slices[1]])


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@torch.no_grad()
def _digest(name: str, parameter: Tensor) -> int:
    part = held_part(parameter)
    columns = parameter.shape[1] if parameter.ndim == 2 else 1
    across = torch.arange(columns, device=part.local.device)[part.slices[1] if parameter.ndim == 2 else slice(None)]
    rows = torch.arange(parameter.shape[0], device=part.local.device)[part.slices[0]]
    total, salt = 0, _hash(name) - 2**63
    rows_at_once = max(1, 2**22 // columns)
    for start in range(0, len(rows), rows_at_once):
        numbers = rows[start : start + rows_at_once, None] * columns + across
        values = part.local[start : start + rows_at_once].reshape(numbers.shape).double().view(torch.int64)
        total += int(_mix(_mix(numbers + salt) + values).sum())
    return total


def _mix(x: Tensor) -> Tensor:
    """A 64-bit finaliser of multiply and xor-shift steps; int64 arithmetic wraps, which is what it needs."""
    x = (x ^ ((x >> 32) & 0xFFFFFFFF)) * 0x2545F4914F6CDD1D
    x = (x ^ ((x >> 29) & 0x7FFFFFFFF)) * 0x1B03738712FAD5C9
    return x ^ ((x >> 32) & 0xFFFFFFFF)
