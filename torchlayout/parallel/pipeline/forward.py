"""Evaluation through a pipeline: a forward-only schedule of our own, since torch's cannot run under every schedule."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from torchlayout.layout import Layout
from torchlayout.model.llama import Llama
from torchlayout.parallel.microbatches import DeviceBatch
from torchlayout.parallel.pipeline.stages import Boundary


class ForwardOnly:
    """All micro-batches through a rank's first stage, then through its next: right for loops and for Vs.

    stages: this rank's parts by stage number.
    """

    def __init__(self, stages: dict[int, Llama], layout: Layout, boundary: Boundary, group: dist.ProcessGroup) -> None:
        self.stages, self.layout, self.boundary, self.group = stages, layout, boundary, group
        self.rank_of = {stage: rank for rank in range(layout.pipeline) for stage in layout.stages_of(rank)}

    @torch.no_grad()
    def summed_loss(self, batch: DeviceBatch) -> Tensor:
        """The summed loss of all micro-batches; 0 off the last stage."""
        total = batch.tokens.new_zeros((), dtype=torch.float64)
        kept: dict[int, Tensor] = {}  # by micro-batch, for a next stage on this same rank
        sent: list[tuple[dist.Work | None, Tensor]] = []  # a tensor must live until it has been sent
        for stage in sorted(self.stages):
            for index, piece in enumerate(batch.micro_batches(self.layout.micro_batch)):
                out = self.stages[stage](self._input(stage, index, piece, kept), **piece.others())
                if stage == self.layout.stages - 1:
                    total += out.double().sum()
                elif stage + 1 in self.stages:
                    kept[index] = out
                else:
                    out = out.contiguous()
                    sent.append((dist.isend(out, group=self.group, group_dst=self.rank_of[stage + 1]), out))
        for work, _ in sent:
            if work is not None:
                work.wait()
        self._free_gathered_parameters()
        return total

    def _input(self, stage: int, index: int, piece: DeviceBatch, kept: dict[int, Tensor]) -> Tensor:
        if stage == 0:
            return piece.tokens
        if stage - 1 in self.stages:
            return kept.pop(index)
        received = self.boundary.hidden_states(requires_grad=False)
        dist.recv(received, group=self.group, group_src=self.rank_of[stage - 1])
        return received

    def _free_gathered_parameters(self) -> None:
        for part in self.stages.values():
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
