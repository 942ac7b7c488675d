"""What memory a model should take, from its sizes alone, to be compared with what is measured on the CPU.

Bytes, for one rank without tensor or pipeline parallelism, grouped-query heads x head_dim = hidden. The CPU's fused
norm keeps its input and the normed input, both in fp32 or wider; a GPU's keeps neither, only what it was given.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchlayout.config import ModelConfig
from torchlayout.layout import Layout
from torchlayout.model.count import layer_parameters, parameters

WIDTH = {"bf16": 2, "fp32": 4, "fp64": 8}


def activations(model: ModelConfig, layout: Layout, precision: str, sequence: int) -> float:
    """What the blocks keep of one sequence from forward to backward, on one context rank."""
    tokens, layers = sequence // layout.context, range(model.num_hidden_layers)
    every = layout.recompute_every
    return sum(
        _block_input(model, precision, tokens)
        if every and layer % every == 0
        else _block(model, layout, precision, tokens)
        for layer in layers
    )


def _block_input(model: ModelConfig, precision: str, tokens: int) -> float:
    return tokens * model.hidden_size * WIDTH[precision]


def _block(model: ModelConfig, layout: Layout, precision: str, tokens: int) -> float:
    """One block that is not recomputed as a whole."""
    width = WIDTH[precision]
    wide = max(4, width)
    hidden, inner, heads = model.hidden_size, model.intermediate_size, model.num_attention_heads
    queries, keys = heads * model.head_dim, model.num_key_value_heads * model.head_dim
    given, result, log_sum = width * (queries + 2 * keys), width * queries, wide * heads
    if layout.recompute == "selective":
        # Results of the seven products and of attention, and the block's input.
        return tokens * (given + result + log_sum + width * (3 * hidden + 2 * inner))
    norm = wide * (2 * hidden + 1) + width * hidden
    if layout.recompute == "ckptattn":
        attention = given + result
    elif layout.attention == "math":
        # Keys and values are spread over the query heads; weights are kept as softmax and as the product take them.
        weights = heads * (wide if wide == width else wide + width) + 1
        attention = 4 * result + tokens * weights
    else:
        # Across context ranks the result is kept twice: as attention's, and rearranged for the output projection.
        attention = given + result * (2 if layout.context > 1 else 1) + log_sum
    return tokens * (2 * norm + attention + width * 4 * inner)


@dataclass(frozen=True)
class Held:
    """Bytes of a rank: of its shards always, of the rest at their peak in a step of three micro-batches or more."""

    parameters: float
    gradients: float
    states: float
    gathered: float
    unsharded_gradients: float


def held(model: ModelConfig, layout: Layout, precision: str, reduce: str) -> Held:
    """Of an untied model on layout.shard x layout.context ranks.

    Master weights and gradients are fp32 or wider, AdamW has two states. zero3 has one block's (or end's) parameters
    gathered; gradients exist unsharded for one block until they are reduced, but under zero1 for all from the first
    micro-batch to the last, in the format they are reduced in (and for one block as they were computed, if that is
    another one).
    """
    total, master = parameters(model), max(4, WIDTH[precision])
    shard = total * master / (layout.shard * layout.context)
    end = model.vocab_size * model.hidden_size
    largest = max(layer_parameters(model), end + model.hidden_size)
    fresh = largest * WIDTH[precision]
    accumulated = total * WIDTH[reduce] + (fresh if reduce != precision else 0)
    return Held(
        parameters=shard,
        gradients=shard,
        states=2 * shard,
        gathered=(largest if layout.zero == 3 else total) * WIDTH[precision],
        unsharded_gradients=accumulated if layout.zero == 1 else fresh,
    )
