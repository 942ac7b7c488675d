"""From a layout to a model in place on this rank: the order of application, on one screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.model.attention import check_kernel
from torchlayout.model.initialize import held_part, initialize
from torchlayout.model.llama import Llama
from torchlayout.parallel.mesh import Meshes
from torchlayout.parallel.microbatches import AccumulatedStep, DeviceBatch
from torchlayout.parallel.pipeline import PipelinedStep, stage_parts, tied_copies_group
from torchlayout.parallel.shard import DTYPES, apply_fully_shard
from torchlayout.parallel.tensor import apply_tensor_parallel


class MicroBatchStep(Protocol):
    """Runs all micro-batches of this data rank's part of a global batch."""

    def forward_backward(self, batch: DeviceBatch, scale: Tensor) -> Tensor: ...

    def evaluate(self, batch: DeviceBatch) -> Tensor: ...


@dataclass(frozen=True)
class ParallelModel:
    """What one rank holds: its parts of the model, and how a step runs through them.

    parts: one for each pipeline stage here. tied_embedding: this rank's copy of a tied embedding that a pipeline holds
    at both ends, kept equal to the other by adding their gradients over `tied_group`; None elsewhere.
    """

    parts: list[Llama]
    step: MicroBatchStep
    tied_embedding: Tensor | None
    tied_group: dist.ProcessGroup | None
    holds_tied_copy: bool

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters by their name in the whole model, a tied one once over all ranks."""
        return [
            (name, parameter)
            for part in self.parts
            for name, parameter in part.named_parameters()
            if not (self.holds_tied_copy and parameter is self.tied_embedding)
        ]

    def own_parameters(self, tensor_rank: int) -> list[tuple[str, nn.Parameter]]:
        """Those of which this rank answers for its part: over all ranks, each element of the model once."""
        return [(name, p) for name, p in self.named_parameters() if not held_part(p, tensor_rank).duplicate]

    def parameters(self) -> list[nn.Parameter]:
        """All parameters that this rank updates."""
        return [parameter for part in self.parts for parameter in part.parameters()]

    def synchronise_tied_gradients(self) -> None:
        """Add the gradients of embedding and head where a pipeline keeps the tied weight at both ends."""
        if self.tied_embedding is not None and self.tied_group is not None:
            assert self.tied_embedding.grad is not None
            dist.all_reduce(_local(self.tied_embedding.grad), group=self.tied_group)


def parallelize(config: Config, layout: Layout, meshes: Meshes, device: torch.device) -> ParallelModel:
    """Build on the meta device, cut, shard, then draw this rank's part of the weights on its device."""
    dtype = DTYPES[config.precision.parameters]
    check_kernel(layout.attention, device, dtype)
    master = torch.promote_types(dtype, torch.float32)

    with torch.device("meta"):
        parts = stage_parts(config, layout, meshes.coordinate("pp"))
    for part in parts:
        part.to(master)
        if layout.tensor > 1:
            apply_tensor_parallel(part, meshes.tensor, sequence_parallel=layout.sequence_parallel)
        apply_fully_shard(
            part,
            meshes.data,
            parameters=config.precision.parameters,
            reduce=config.precision.reduce,
            zero=layout.zero,
        )
        part.to_empty(device=device)
        part.tie()
        initialize(part, config.model, config.run.seed)

    if layout.pipeline == 1:
        return ParallelModel(parts, AccumulatedStep(parts[0], layout), None, None, False)
    step = PipelinedStep(parts, config, layout, meshes, dtype, device)
    return ParallelModel(parts, step, *_tied_ends(config, meshes, parts))


def _tied_ends(
    config: Config, meshes: Meshes, parts: list[Llama]
) -> tuple[Tensor | None, dist.ProcessGroup | None, bool]:
    if not config.model.tie_word_embeddings:
        return None, None, False
    group = tied_copies_group(meshes)
    first, last = parts[0], parts[-1]
    if first.embedding is not None:
        return first.embedding.weight, group, False
    if last.head is not None:
        return last.head.output.weight, group, True
    return None, None, False


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
