"""Runs the micro-batches of a step through the stages of a pipeline.

Schedules are torch's (GPipe arXiv 1811.06965, 1F1B and interleaving arXiv 2104.04473, looped arXiv 2211.05953, zero
bubble arXiv 2401.10241, DualPipeV after arXiv 2412.19437); what they execute is described in `torchlayout.schedule`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.model.llama import Llama
from torchlayout.parallel.mark import Mark, unmarked
from torchlayout.parallel.mesh import Meshes
from torchlayout.parallel.microbatches import DeviceBatch
from torchlayout.parallel.pipeline.forward import ForwardOnly
from torchlayout.parallel.pipeline.marked import MarkedStage
from torchlayout.parallel.pipeline.stages import Boundary

SCHEDULE_CLASSES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "looped": "LoopedBFS",
    "zerobubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


class PipelinedStep:
    """Forward and backward of all micro-batches of a step, over the stages of a pipeline."""

    def __init__(
        self,
        parts: list[Llama],
        config: Config,
        layout: Layout,
        meshes: Meshes,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.scale: Tensor | None = None
        boundary = Boundary.of(config, layout, dtype, device)
        held = layout.stages_of(meshes.coordinate("pp"))
        self.takes_tokens, self.gives_loss = 0 in held, layout.stages - 1 in held
        group = meshes.axes.get_group("pp")
        self.stages = [
            MarkedStage(
                part,
                stage,
                layout.stages,
                device,
                input_args=boundary.tokens() if stage == 0 else boundary.hidden_states(),
                output_args=boundary.loss() if stage == layout.stages - 1 else boundary.hidden_states(),
                group=group,
            )
            for stage, part in zip(held, parts, strict=True)
        ]
        schedule_class = get_schedule_class(SCHEDULE_CLASSES[layout.schedule])
        self.schedule = schedule_class(
            self.stages[0] if issubclass(schedule_class, PipelineScheduleSingle) else self.stages,
            n_microbatches=layout.micro_batches(config.batch.global_size),
            loss_fn=self._scaled_loss,
            # The loss is scaled once, by us; torch would divide by the number of micro-batches again.
            scale_grads=False,
        )
        self.forward_only = ForwardOnly(dict(zip(held, parts, strict=True)), layout, boundary, group)

    def forward_backward(self, batch: DeviceBatch, scale: Tensor, mark: Mark = unmarked) -> Tensor:
        """Add the gradients of loss x scale to the parameters; return the summed loss (0 off the last stage)."""
        self.scale = scale
        for stage in self.stages:
            stage.mark = mark
        tokens = (batch.tokens,) if self.takes_tokens else ()
        target = {"target": batch.labels} if self.gives_loss else {}
        losses = self.schedule.step(*tokens, **target, **batch.others())
        if losses is None:
            return batch.tokens.new_zeros((), dtype=torch.float64)
        return losses.detach().double().sum()

    def evaluate(self, batch: DeviceBatch) -> Tensor:
        """The summed loss of a held-out batch (0 off the last stage)."""
        return self.forward_only.summed_loss(batch)

    def _scaled_loss(self, summed_loss: Tensor, labels: Tensor) -> Tensor:
        assert self.scale is not None
        return summed_loss.sum() * self.scale
