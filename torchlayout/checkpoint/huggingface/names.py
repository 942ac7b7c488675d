"""What Hugging Face's Llama calls parameters and files."""

from __future__ import annotations

from torchlayout.config import ModelConfig
from torchlayout.model.count import shapes

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WHOLE = {"embedding.weight": EMBEDDING, "head.norm.weight": "model.norm.weight", "head.output.weight": HEAD}
IN_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}


def names(model: ModelConfig) -> dict[str, str]:
    """Hugging Face's name of each parameter of a model, by ours; a tied head has none."""
    return {name: WHOLE.get(name) or _in_layer(name) for name in shapes(model)}


def listed(words: list[str]) -> str:
    """The first few of many names, and how many more there are."""
    return ", ".join(words[:3]) + (f" and {len(words) - 3:,} more" if len(words) > 3 else "")


def _in_layer(name: str) -> str:
    _, layer, module = name.removesuffix(".weight").split(".", 2)
    return f"model.layers.{layer}.{IN_LAYER[module]}.weight"
