"""The parts of the model that a pipeline rank holds, and what crosses from one stage to the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.model.llama import Llama


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


@dataclass(frozen=True)
class Boundary:
    """Shapes between stages, fixed in a run; hidden states: [micro-batch, sequence / cp (/ tp under sp), hidden]."""

    micro_batch: int
    sequence: int
    hidden_sequence: int
    hidden: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, config: Config, layout: Layout, dtype: torch.dtype, device: torch.device) -> Boundary:
        sequence = config.data.sequence_length // layout.context
        cut = layout.tensor if layout.sequence_parallel else 1
        return cls(layout.micro_batch, sequence, sequence // cut, config.model.hidden_size, dtype, device)

    def tokens(self) -> Tensor:
        """An example of what the first stage takes."""
        return torch.empty(self.micro_batch, self.sequence, dtype=torch.long, device=self.device)

    def hidden_states(self, *, requires_grad: bool = True) -> Tensor:
        """An example of what crosses.

        Without requires_grad a stage expects no gradient back, and its neighbour waits for ever.
        """
        shape = (self.micro_batch, self.hidden_sequence, self.hidden)
        return torch.empty(shape, dtype=self.dtype, device=self.device, requires_grad=requires_grad)

    def loss(self) -> Tensor:
        """An example of what the last stage returns."""
        wide = torch.promote_types(self.dtype, torch.float32)
        return torch.empty(1, dtype=wide, device=self.device, requires_grad=True)
