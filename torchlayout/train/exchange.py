"""What the ranks tell each other in a step: one all-gather of a short row from each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from torchlayout.parallel.mesh import Meshes


class RanksDisagree(Exception):
    """Ranks that must have seen the same tokens did not."""


@dataclass(frozen=True)
class StepFacts:
    """A step as all ranks know it after the exchange.

    summed_loss: over every label of the global batch. grad_norm: of the whole model.
    """

    summed_loss: float
    grad_norm: float
    data_seconds: float
    peak_memory_bytes_by_rank: tuple[int, ...]
    batch_digest: str
    stop: int


def exchange_step(
    meshes: Meshes,
    *,
    summed_loss: Tensor,
    squared_norm: Tensor,
    digest: int,
    data_seconds: float,
    peak_memory_bytes: int,
    stop: int,
) -> StepFacts:
    """Combine every rank's part of a step.

    summed_loss, squared_norm: this rank's parts, the loss 0 off the last stage. The slowest rank's data_seconds
    counts, and the highest stop code (`StopRequest.code`). Raises RanksDisagree unless the digest is the same on each
    tensor and pipeline rank.
    """
    halves = [float(digest >> 32), float(digest & 0xFFFFFFFF)]  # fp64 holds 53 bits exactly
    rest = torch.tensor([*halves, data_seconds, float(peak_memory_bytes), float(stop)], dtype=torch.float64)
    row = torch.cat([summed_loss.double().reshape(1), squared_norm.reshape(1), rest.to(summed_loss.device)])
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    table = torch.stack(rows).cpu()

    layout = meshes.layout
    by_rank = table.unflatten(0, (layout.pipeline, layout.data_ranks * layout.context, layout.tensor))
    return StepFacts(
        summed_loss=float(by_rank[:, :, 0, 0].sum()),
        grad_norm=float(table[:, 1].sum().sqrt()),
        data_seconds=float(table[:, 4].max()),
        peak_memory_bytes_by_rank=tuple(int(peak) for peak in table[:, 5]),
        batch_digest=f"{_agreed_digest(by_rank):016x}",
        stop=int(table[:, 6].max()),
    )


def sum_over_ranks(value: int, device: torch.device) -> int:
    """The sum modulo 2^64 of a 64-bit number of each rank."""
    halves = torch.tensor([value >> 32, value & 0xFFFFFFFF], dtype=torch.int64, device=device)
    dist.all_reduce(halves)
    high, low = halves.tolist()
    return int((high << 32) + low) % 2**64


def _agreed_digest(by_rank: Tensor) -> int:
    digests = {
        sum((int(high) << 32) + int(low) for high, low in by_rank[stage, :, tensor_rank, 2:4].tolist()) % 2**64
        for stage in range(by_rank.shape[0])
        for tensor_rank in range(by_rank.shape[2])
    }
    if len(digests) > 1:
        raise RanksDisagree("tensor or pipeline ranks of one data rank were given different samples")
    return digests.pop()
