"""One training step to price: a model, its data and a layout, with the sizes that follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig
    from torchlayout.layout import Layout


WIDTH = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
"""Bytes of a number by format."""


@dataclass(frozen=True)
class Job:
    """What a step of training is, apart from the machine and the stack that run it.

    sequence in tokens, batch in sequences a step over all ranks; attention is a kernel as the planner names them:
    unfused, fused-softmax, flash1, flash2 or flash.
    """

    model: ModelConfig
    sequence: int
    batch: int
    layout: Layout
    attention: str = "flash2"
    precision: str = "bf16"
    loss: str = "chunked"
    reduce: str = "fp32"
    """Format in which gradients are reduced where the stack leaves it open."""

    @cached_property
    def micro_batches(self) -> int:
        """Micro-batches of a data rank in a step."""
        return self.batch // (self.layout.data_ranks * self.layout.micro_batch)

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank: its part of the sequence."""
        return self.layout.micro_batch * self.sequence // self.layout.context

    @cached_property
    def piece(self) -> tuple[object, ...]:
        """What the price of a block, of the embedding and of the head depends on."""
        layout = self.layout
        return (
            id(self.model), self.tokens, self.sequence, layout.tensor, layout.context, layout.sequence_parallel,
            layout.context_method, self.attention, layout.norm, layout.compile, self.loss,
        )  # fmt: skip
