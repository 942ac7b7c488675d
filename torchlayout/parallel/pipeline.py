"""Pipeline parallelism: cut the model into stages, and run micro-batches through them by a schedule.

Schedules are torch's (GPipe arXiv 1811.06965, 1F1B arXiv 2104.04473); what they execute is described in
`torchlayout.schedule`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.model.llama import Llama
from torchlayout.parallel.mesh import Meshes
from torchlayout.parallel.microbatches import DeviceBatch

SCHEDULE_CLASSES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "looped": "LoopedBFS",
    "zerobubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


def stage_parts(config: Config, layout: Layout, pipeline_rank: int) -> list[Llama]:
    """The parts of the model that a pipeline rank holds, one for each of its stages, in stage order."""
    layers = layout.split(config.model, config.data.sequence_length)
    return [
        Llama(
            config.model,
            layers=layers[stage],
            embedding=stage == 0,
            head=stage == layout.stages - 1,
            attention=layout.attention,
            norm=layout.norm,
            loss=config.kernels.loss,
        )
        for stage in layout.stages_of(pipeline_rank)
    ]


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
        self.layout = layout
        self.scale: Tensor | None = None
        pipeline_rank = meshes.coordinate("pp")
        group = meshes.axes.get_group("pp")
        stages = [
            PipelineStage(
                part,
                stage,
                layout.stages,
                device,
                input_args=_stage_input(config, layout, dtype, device, first=stage == 0),
                output_args=_stage_output(config, layout, dtype, device, last=stage == layout.stages - 1),
                group=group,
            )
            for stage, part in zip(layout.stages_of(pipeline_rank), parts, strict=True)
        ]
        self.takes_tokens = any(stage.is_first for stage in stages)
        self.gives_loss = any(stage.is_last for stage in stages)
        schedule_class = get_schedule_class(SCHEDULE_CLASSES[layout.schedule])
        self.schedule = schedule_class(
            stages[0] if issubclass(schedule_class, PipelineScheduleSingle) else stages,
            n_microbatches=layout.micro_batches(config.batch.global_size),
            loss_fn=self._scaled_loss,
            # The loss is scaled once, by us; torch would divide by the number of micro-batches again.
            scale_grads=False,
        )

    def forward_backward(self, batch: DeviceBatch, scale: Tensor) -> Tensor:
        """Add the gradients of loss x scale to the parameters; return the summed loss (0 off the last stage)."""
        self.scale = scale
        return self._total(self.schedule.step(*self._tokens(batch), **self._others(batch)), batch)

    @torch.no_grad()
    def evaluate(self, batch: DeviceBatch) -> Tensor:
        """The summed loss of a held-out batch (0 off the last stage)."""
        self.scale = batch.tokens.new_ones((), dtype=torch.float64)
        return self._total(self.schedule.eval(*self._tokens(batch), **self._others(batch)), batch)

    def _scaled_loss(self, summed_loss: Tensor, labels: Tensor) -> Tensor:
        assert self.scale is not None
        return summed_loss.sum() * self.scale

    def _tokens(self, batch: DeviceBatch) -> tuple[Tensor, ...]:
        return (batch.tokens,) if self.takes_tokens else ()

    def _others(self, batch: DeviceBatch) -> dict[str, Tensor]:
        optional = {} if batch.documents is None else {"documents": batch.documents}
        target = {"target": batch.labels} if self.gives_loss else {}
        return {"labels": batch.labels, "positions": batch.positions} | optional | target

    def _total(self, losses: Tensor | None, batch: DeviceBatch) -> Tensor:
        if losses is None:
            return batch.tokens.new_zeros((), dtype=torch.float64)
        return losses.detach().double().sum()


def tied_copies_group(meshes: Meshes) -> dist.ProcessGroup:
    """The first and last pipeline rank of this rank's pipeline, who both hold the tied embedding; collective call."""
    pipelines = meshes.axes.mesh.flatten(1).T.tolist()
    ends = [[ranks[0], ranks[-1]] for ranks in pipelines]
    middles = [[rank] for ranks in pipelines for rank in ranks[1:-1]]
    group, _ = dist.new_subgroups_by_enumeration(ends + middles)
    return group


def _hidden(config: Config, layout: Layout, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An example of what crosses a stage boundary: [micro-batch, sequence (/ tp under sp), hidden]."""
    sequence = config.data.sequence_length // (layout.tensor if layout.sequence_parallel else 1) // layout.context
    shape = (layout.micro_batch, sequence, config.model.hidden_size)
    # Without requires_grad the stage expects no gradient back, and its neighbour waits for ever.
    return torch.empty(shape, dtype=dtype, device=device, requires_grad=True)


def _stage_input(config: Config, layout: Layout, dtype: torch.dtype, device: torch.device, *, first: bool) -> Tensor:
    if first:
        sequence = config.data.sequence_length // layout.context
        return torch.empty(layout.micro_batch, sequence, dtype=torch.long, device=device)
    return _hidden(config, layout, dtype, device)


def _stage_output(config: Config, layout: Layout, dtype: torch.dtype, device: torch.device, *, last: bool) -> Tensor:
    if last:
        return torch.empty(1, dtype=torch.promote_types(dtype, torch.float32), device=device, requires_grad=True)
    return _hidden(config, layout, dtype, device)
