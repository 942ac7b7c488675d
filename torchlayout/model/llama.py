"""The Llama model (arXiv 2302.13971, 2307.09288, 2407.21783). It knows nothing of parallelism.

A model can be a part of the whole: `Llama(config, layers=range(4, 8), embedding=False)` holds four blocks and the head.
Parameter names are those of the whole model, so a block keeps its global number wherever it lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlayout.model.attention import AttentionCore
from torchlayout.model.loss import LOSSES
from torchlayout.model.rope import RotaryTable, rotary_table, rotate

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm (arXiv 1910.07467): one fused kernel, or single tensor operations when `eager`."""

    def __init__(self, size: int, epsilon: float, kernel: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.epsilon = epsilon
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel == "fused":
            return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return normed.to(x.dtype) * self.weight


class Attention(nn.Module):
    """Grouped-query causal attention (arXiv 2305.13245). x: [batch, sequence, hidden].

    Head counts come from the projections' width, so that a tensor-parallel rank sees its own heads.
    """

    def __init__(self, model: ModelConfig, kernel: str) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        queries, keys = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
        self.query = nn.Linear(model.hidden_size, queries, bias=False)
        self.key = nn.Linear(model.hidden_size, keys, bias=False)
        self.value = nn.Linear(model.hidden_size, keys, bias=False)
        self.output = nn.Linear(queries, model.hidden_size, bias=False)
        self.core = AttentionCore(kernel)

    def forward(self, x: Tensor, rotary: RotaryTable, documents: Tensor | None) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.query, self.key, self.value))
        mixed = self.core(rotate(q, rotary), rotate(k, rotary), v, documents)
        return self.output(mixed.flatten(2))


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202). x: [batch, sequence, hidden]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden_size, model.intermediate_size, bias=False)
        self.up = nn.Linear(model.hidden_size, model.intermediate_size, bias=False)
        self.down = nn.Linear(model.intermediate_size, model.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One transformer layer, pre-norm. x: [batch, sequence, hidden]."""

    def __init__(self, model: ModelConfig, attention: str, norm: str) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(model.hidden_size, model.rms_norm_eps, norm)
        self.attention = Attention(model, attention)
        self.feed_forward_norm = RMSNorm(model.hidden_size, model.rms_norm_eps, norm)
        self.feed_forward = FeedForward(model)

    def forward(self, x: Tensor, rotary: RotaryTable, documents: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, documents)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Head(nn.Module):
    """Final norm, output projection and, when labels are given, the summed loss.

    The loss is computed here, not outside, so that the logits of a whole micro-batch never have to exist.
    """

    def __init__(self, model: ModelConfig, norm: str, loss: str) -> None:
        super().__init__()
        self.norm = RMSNorm(model.hidden_size, model.rms_norm_eps, norm)
        self.output = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        self.loss = LOSSES[loss]

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """Logits [batch, sequence, vocabulary] without labels, else the loss summed over labels that count, [1]."""
        x = self.norm(x)
        if labels is None:
            return self.output(x)
        # Stacked, not reshaped: FSDP2 warns of views, on which an in-place operation would lose its hooks.
        return torch.stack([self.loss(x, self.output.weight, labels)])


class Llama(nn.Module):
    """All of the model, or a part of it: some layers, with or without embedding and head."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        layers: Iterable[int] | None = None,
        embedding: bool = True,
        head: bool = True,
        attention: str = "sdpa",
        norm: str = "fused",
        loss: str = "chunked",
    ) -> None:
        super().__init__()
        self.config = model
        held = range(model.num_hidden_layers) if layers is None else layers
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size) if embedding else None
        self.layers = nn.ModuleDict({str(i): Block(model, attention, norm) for i in held})
        self.head = Head(model, norm, loss) if head else None
        self.tie()

    def tie(self) -> None:
        """Make head and embedding one parameter where the model says so and both are here."""
        if self.config.tie_word_embeddings and self.embedding is not None and self.head is not None:
            self.head.output.weight = self.embedding.weight

    def forward(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Run what is held of the model.

        x: tokens [batch, sequence] where the embedding is held, else hidden states [batch, sequence, hidden].
        labels, positions, documents: [batch, sequence]; positions default to 0, 1, 2...
        Returns hidden states; or logits; or, with labels, the summed loss [1] (see `Head`).
        """
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        if self.embedding is not None:
            x = self.embedding(x)
        rotary = rotary_table(self.config, positions, x.dtype)
        for block in self.layers.values():
            x = block(x, rotary, documents)
        return x if self.head is None else self.head(x, labels)
