"""Parameters and FLOPs of a model, exact; arithmetic on its configuration, so it stands on the floor of the values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig
    from torchlayout.layout import Layout

Convention = Literal["paper", "exact"]
"""paper: 6 N + 12 L h s (arXiv 2311.05610); exact: the matrix products really done, causal attention halved."""


def shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its fully qualified name; a tied head has no weights of its own."""
    named: dict[str, tuple[int, ...]] = {"embedding.weight": (model.vocab_size, model.hidden_size)}
    for layer in range(model.num_hidden_layers):
        named |= {f"layers.{layer}.{name}": shape for name, shape in layer_shapes(model).items()}
    named["head.norm.weight"] = (model.hidden_size,)
    if not model.tie_word_embeddings:
        named["head.output.weight"] = (model.vocab_size, model.hidden_size)
    return named


def layer_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of one block, by its name inside the block."""
    hidden, inner = model.hidden_size, model.intermediate_size
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    return {
        "attention_norm.weight": (hidden,),
        "attention.query.weight": (queries, hidden),
        "attention.key.weight": (keys, hidden),
        "attention.value.weight": (keys, hidden),
        "attention.output.weight": (hidden, queries),
        "feed_forward_norm.weight": (hidden,),
        "feed_forward.gate.weight": (inner, hidden),
        "feed_forward.up.weight": (inner, hidden),
        "feed_forward.down.weight": (hidden, inner),
    }


def parameters(model: ModelConfig) -> int:
    """Distinct parameters of the model: both embeddings of an untied one, a tied one once."""
    embeddings = 1 if model.tie_word_embeddings else 2
    return (
        embeddings * model.vocab_size * model.hidden_size
        + model.num_hidden_layers * layer_parameters(model)
        + model.hidden_size
    )


def layer_parameters(model: ModelConfig) -> int:
    """Parameters of one block."""
    return sum(math.prod(shape) for shape in layer_shapes(model).values())


def flops_per_token(model: ModelConfig, sequence: int, convention: Convention) -> float:
    """FLOPs of forward and backward for one token, nothing recomputed."""
    if convention == "paper":
        attention = 12 * model.num_hidden_layers * model.hidden_size * sequence
        return float(6 * parameters(model) + attention)
    layers = model.num_hidden_layers * layer_flops_per_token(model, sequence)
    return layers + head_flops_per_token(model)


def layer_flops_per_token(model: ModelConfig, sequence: int) -> float:
    """Exact FLOPs of forward and backward of one block for one token of a sequence of `sequence` tokens."""
    return 3 * (_layer_matmul_flops(model) + _attention_flops(model, sequence))


def head_flops_per_token(model: ModelConfig) -> float:
    """Exact FLOPs of forward and backward of the head's product for one token; a tied head does it as well."""
    return 3.0 * _head_flops(model)


def recomputed_flops_per_token(
    model: ModelConfig,
    sequence: int,
    layout: Layout,
    convention: Convention,
    loss: Literal["chunked", "plain"] = "chunked",
) -> float:
    """FLOPs for one token that the backward pass does again; HFU adds them to what the model needs.

    A recomputed block repeats its forward pass up to the last product, whose result backward has no use for (torch
    stops there), `ckptattn` the attention core alone, `selective` no product; the chunked loss repeats the head's
    product. The paper convention charges attention 4 h s, not the causal half.
    """
    attention = _attention_flops(model, sequence)
    if convention == "paper":
        attention = 4.0 * model.hidden_size * sequence
    blocks = 0
    if every := layout.recompute_every:
        blocks = len(range(0, model.num_hidden_layers, every))
    last_product = 2.0 * model.hidden_size * model.intermediate_size
    flops = blocks * (_layer_matmul_flops(model) + attention - last_product)
    if layout.recompute == "ckptattn":
        flops += model.num_hidden_layers * attention
    if loss == "chunked":
        flops += _head_flops(model)
    return flops


def _layer_matmul_flops(model: ModelConfig) -> float:
    weights = sum(math.prod(shape) for shape in layer_shapes(model).values() if len(shape) == 2)
    return 2.0 * weights


def _attention_flops(model: ModelConfig, sequence: int) -> float:
    # Causal: a token meets half of the keys on average, each in two products over heads x head_dim.
    return 4.0 * model.num_attention_heads * model.head_dim * sequence / 2


def _head_flops(model: ModelConfig) -> float:
    return 2.0 * model.vocab_size * model.hidden_size
