"""From a layout to a model in place on this rank: the order of application, on one screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.model.attention import check_kernel
from torchlayout.model.initialize import held_part, initialize
from torchlayout.model.llama import Llama
from torchlayout.parallel.compile import apply_compile
from torchlayout.parallel.context import apply_context_parallel
from torchlayout.parallel.mark import Mark, unmarked
from torchlayout.parallel.mesh import Meshes
from torchlayout.parallel.microbatches import AccumulatedStep, DeviceBatch
from torchlayout.parallel.pipeline import PipelinedStep, TiedEnds, stage_parts
from torchlayout.parallel.recompute import apply_recomputation
from torchlayout.parallel.shard import DTYPES, apply_fully_shard
from torchlayout.parallel.tensor import apply_tensor_parallel

EMBEDDING = "embedding.weight"


class MicroBatchStep(Protocol):
    """Runs all micro-batches of this data rank's part of a global batch."""

    def forward_backward(self, batch: DeviceBatch, scale: Tensor, mark: Mark = unmarked) -> Tensor: ...

    def evaluate(self, batch: DeviceBatch) -> Tensor: ...


@dataclass(frozen=True)
class ParallelModel:
    """What one rank holds: its parts of the model (one for each pipeline stage here), and how a step runs through them.

    tied: where a pipeline holds a tied embedding at both ends, else None.
    """

    parts: list[Llama]
    step: MicroBatchStep
    tied: TiedEnds | None

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters by their name in the whole model, a tied one once over all ranks."""
        return [(name, p) for name, p in self.named_copies() if self.tied is None or not self.tied.is_copy(p)]

    def named_copies(self) -> list[tuple[str, nn.Parameter]]:
        """All parameters of this rank by their name in the whole model: the head's copy of a tied one has its name."""
        return [
            (EMBEDDING if self.tied is not None and self.tied.is_copy(parameter) else name, parameter)
            for part in self.parts
            for name, parameter in part.named_parameters()
        ]

    def own_parameters(self, tensor_rank: int) -> list[tuple[str, nn.Parameter]]:
        """Those of which this rank answers for its part: over all ranks, each element of the model once."""
        return [(name, p) for name, p in self.named_parameters() if not held_part(p, tensor_rank).duplicate]

    def parameters(self) -> list[nn.Parameter]:
        """All parameters that this rank updates."""
        return [parameter for part in self.parts for parameter in part.parameters()]

    def finish_gradients(self) -> None:
        """What is left to do once all micro-batches have gone backward."""
        if self.tied is not None:
            self.tied.synchronise_gradients()


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
        if layout.context > 1:
            apply_context_parallel(part, layout, meshes.axes["cp"])
        apply_recomputation(part, layout)
        if layout.compile:
            apply_compile(part, layout)
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
        return ParallelModel(parts, AccumulatedStep(parts[0], layout), tied=None)
    tied = TiedEnds(parts, meshes) if config.model.tie_word_embeddings else None
    return ParallelModel(parts, PipelinedStep(parts, config, layout, meshes, dtype, device), tied)
