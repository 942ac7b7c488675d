"""The matrices of a model as a stack builds and shards them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig
    from torchlayout.plan.software import Software


@dataclass(frozen=True)
class Shape:
    """Sizes of a model on tensor ranks: hidden, inner, query and key/value widths, padded vocabulary."""

    layers: int
    hidden: int
    inner: int
    heads: int
    query: int
    keys: int
    vocabulary: int
    gated: bool
    tied: bool
    positions: int

    @classmethod
    def of(cls, model: ModelConfig, software: Software, tensor: int, sequence: int) -> Shape:
        """The shape of a model in a stack on `tensor` ranks."""
        unit = software.vocabulary_multiple * tensor if software.vocabulary_multiple > 1 else 1
        return cls(
            layers=model.num_hidden_layers,
            hidden=model.hidden_size,
            inner=model.intermediate_size,
            heads=model.num_attention_heads,
            query=model.num_attention_heads * model.head_dim,
            keys=model.num_key_value_heads * model.head_dim,
            vocabulary=-(-model.vocab_size // unit) * unit,
            gated=software.feed_forward == "swiglu",
            tied=model.tie_word_embeddings,
            positions=sequence if software.learned_positions else 0,
        )

    @cached_property
    def linears(self) -> tuple[tuple[int, int, bool], ...]:
        """(inputs, outputs, whether the outputs are split over tensor ranks) of each matrix of a block."""
        hidden, inner = self.hidden, self.inner
        up = ((hidden, inner, True),) * (2 if self.gated else 1)
        return (
            (hidden, self.query, True),
            (hidden, self.keys, True),
            (hidden, self.keys, True),
            (self.query, hidden, False),
            *up,
            (inner, hidden, False),
        )

    @cached_property
    def matrices(self) -> int:
        """Parameters of a block's matrices."""
        return sum(inputs * outputs for inputs, outputs, _ in self.linears)

    @property
    def norms(self) -> int:
        """Parameters of a block's norms."""
        return 2 * self.hidden

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, positions included."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head(self) -> int:
        """Parameters of the head's matrix where it has its own."""
        return self.vocabulary * self.hidden
