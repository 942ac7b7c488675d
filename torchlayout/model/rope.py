"""Rotary position embedding, with the Llama-3 frequency scaling (arXiv 2104.09864, 2407.21783)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig


RotaryTable = tuple[Tensor, Tensor]
"""Cosines and sines, each [batch, sequence, 1, head_dim / 2]."""


def frequencies(model: ModelConfig) -> list[float]:
    """Angular frequency in radians per position of each of the head_dim / 2 rotated pairs."""
    plain = [model.rope_theta ** (-2 * i / model.head_dim) for i in range(model.head_dim // 2)]
    scaling = model.rope_scaling
    if scaling is None:
        return plain

    def scaled(frequency: float) -> float:
        turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
        keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        keep = min(1.0, max(0.0, keep))
        return keep * frequency + (1 - keep) * frequency / scaling.factor

    return [scaled(frequency) for frequency in plain]


def rotary_table(model: ModelConfig, positions: Tensor, dtype: torch.dtype) -> RotaryTable:
    """Cosines and sines of every position ([batch, sequence], integer), never below fp32.

    Computed from the configuration at each call and stored nowhere: a table kept in a buffer is the one that comes
    back empty or stale from meta-device initialisation. Angles are formed in fp64, since position x frequency in
    fp32 is off by 1e-3 radians at position 100,000.
    """
    per_pair = torch.tensor(frequencies(model), dtype=torch.float64, device=positions.device)
    angles = positions[..., None, None].double() * per_pair
    kept = torch.promote_types(dtype, torch.float32)
    return angles.cos().to(kept), angles.sin().to(kept)


def rotate(x: Tensor, table: RotaryTable) -> Tensor:
    """Rotate queries or keys x [batch, sequence, heads, head_dim]; pairs are (i, i + head_dim / 2)."""
    cosine, sine = table
    first, second = x.to(cosine.dtype).chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
