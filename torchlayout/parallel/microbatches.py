"""A step without a pipeline: micro-batches one after the other, gradients added up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchlayout.layout import Layout
from torchlayout.model.llama import Llama
from torchlayout.parallel.mark import Mark, unmarked
from torchlayout.parallel.shard import finish_backward

if TYPE_CHECKING:
    from torchlayout.data.loader import Batch


@dataclass(frozen=True)
class DeviceBatch:
    """What the model consumes of a data rank's part of a global batch; each [local sequences, sequence]."""

    tokens: Tensor
    labels: Tensor
    positions: Tensor
    documents: Tensor | None

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> DeviceBatch:
        """Copy a loader's batch to the device."""
        documents = None if batch.documents is None else batch.documents.to(device, non_blocking=True)
        tokens, labels, positions = (
            part.to(device, non_blocking=True) for part in (batch.tokens, batch.labels, batch.positions)
        )
        return cls(tokens, labels, positions, documents)

    def others(self) -> dict[str, Tensor]:
        """What every stage of a model is given beside its input."""
        optional = {} if self.documents is None else {"documents": self.documents}
        return {"labels": self.labels, "positions": self.positions} | optional

    def micro_batches(self, size: int) -> Iterator[DeviceBatch]:
        """Consecutive pieces of `size` sequences."""
        for start in range(0, self.tokens.shape[0], size):
            piece = slice(start, start + size)
            documents = None if self.documents is None else self.documents[piece]
            yield DeviceBatch(self.tokens[piece], self.labels[piece], self.positions[piece], documents)


class AccumulatedStep:
    """Forward and backward of all micro-batches of a step on one (sharded) model."""

    def __init__(self, model: Llama, layout: Layout) -> None:
        self.model = model
        self.layout = layout

    def forward_backward(self, batch: DeviceBatch, scale: Tensor, mark: Mark = unmarked) -> Tensor:
        """Add the gradients of loss x scale to the parameters; return the summed loss."""
        total = torch.zeros((), dtype=torch.float64, device=batch.tokens.device)
        count = batch.tokens.shape[0] // self.layout.micro_batch
        for index, piece in enumerate(batch.micro_batches(self.layout.micro_batch)):
            finish_backward(self.model, self.layout.zero != 1 or index == count - 1)
            with mark("forward", stage=0, micro_batch=index):
                loss = self._loss(piece)
            with mark("backward", stage=0, micro_batch=index):
                (loss.sum() * scale).backward()
            total += loss.detach().double().sum()
        return total

    @torch.no_grad()
    def evaluate(self, batch: DeviceBatch) -> Tensor:
        """The summed loss of a held-out batch."""
        pieces = batch.micro_batches(self.layout.micro_batch)
        return torch.stack([self._loss(piece).double().sum() for piece in pieces]).sum()

    def _loss(self, piece: DeviceBatch) -> Tensor:
        loss: Tensor = self.model(piece.tokens, **piece.others())
        return loss
