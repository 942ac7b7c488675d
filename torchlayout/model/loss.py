"""Cross entropy summed over the labels that count, with and without the whole logits in memory.

Every loss takes hidden states [batch, sequence, hidden], the output projection's weight [vocabulary, hidden] and labels
[batch, sequence] (IGNORED where nothing is to be predicted), and returns a scalar, fp32 or wider. It is a sum, not a
mean: dividing by the count of labels is the trainer's business, which alone knows the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORED = -100
CHUNK_TOKENS = 1024
"""Rows of logits that exist at once: 0.5 GB in fp32 at a vocabulary of 128,000."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The reference: all logits at once."""
    logits = F.linear(hidden, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def chunked_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The same sum, CHUNK_TOKENS rows of logits at a time; backward computes each chunk's logits again."""
    return vocabulary_loss(hidden, weight, labels, WholeVocabulary())


class WholeVocabulary:
    """All rows of the output projection are here. `parallel.tensor` has the counterpart for a shard of them."""

    first = 0

    def maximum(self, values: Tensor) -> Tensor:
        """Combine a per-token maximum over the shards."""
        return values

    def total(self, values: Tensor) -> Tensor:
        """Combine a per-token sum over the shards."""
        return values


def vocabulary_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    vocabulary: WholeVocabulary,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Tensor:
    """Chunked loss over the vocabulary rows held here; the gradient of `hidden` is this shard's part only."""
    loss: Tensor = _ChunkedCrossEntropy.apply(hidden.flatten(0, 1), weight, labels.flatten(), vocabulary, chunk_tokens)
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        vocabulary: WholeVocabulary,
        chunk_tokens: int,
    ) -> Tensor:
        log_sums, loss = [], hidden.new_zeros((), dtype=_wide(hidden.dtype))
        for rows in _chunks(hidden.shape[0], chunk_tokens):
            logits = _logits(hidden[rows], weight)
            top = vocabulary.maximum(logits.amax(-1))
            log_sum = vocabulary.total((logits - top[:, None]).exp().sum(-1)).log() + top
            column, held = _own_column(labels[rows], vocabulary, weight.shape[0])
            target = vocabulary.total(logits.gather(1, column[:, None])[:, 0] * held)
            loss = loss + ((log_sum - target) * (labels[rows] != IGNORED)).sum()
            log_sums.append(log_sum)
        ctx.save_for_backward(hidden, weight, labels, torch.cat(log_sums))
        ctx.vocabulary, ctx.chunk_tokens = vocabulary, chunk_tokens
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, labels, log_sums = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        # Chunks are summed in fp32: sixty-four bf16 additions would cost a percent of the gradient.
        grad_weight = torch.zeros_like(weight, dtype=_wide(weight.dtype))
        for rows in _chunks(hidden.shape[0], ctx.chunk_tokens):
            probabilities = (_logits(hidden[rows], weight) - log_sums[rows, None]).exp()
            column, held = _own_column(labels[rows], ctx.vocabulary, weight.shape[0])
            probabilities.scatter_add_(1, column[:, None], -held[:, None].to(probabilities.dtype))
            probabilities *= (scale * (labels[rows] != IGNORED))[:, None]
            grad_logits = probabilities.to(weight.dtype)
            grad_hidden[rows] = grad_logits @ weight
            grad_weight += grad_logits.T @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    return logits.to(_wide(logits.dtype))


def _chunks(tokens: int, chunk_tokens: int) -> Iterator[slice]:
    return (slice(start, min(start + chunk_tokens, tokens)) for start in range(0, tokens, chunk_tokens))


def _own_column(labels: Tensor, vocabulary: WholeVocabulary, held_rows: int) -> tuple[Tensor, Tensor]:
    """Each label's column among the vocabulary rows held here, and whether it is one of them."""
    column = labels - vocabulary.first
    held = (column >= 0) & (column < held_rows)
    return column.clamp(0, held_rows - 1), held


LOSSES: dict[str, Loss] = {"plain": plain_loss, "chunked": chunked_loss}
