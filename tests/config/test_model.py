from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchlayout.config import ModelConfig
from torchlayout.config.model import presets, spell_out
from torchlayout.errors import InputError

# The config.json of Llama 3.1 8B as published, less the keys that say nothing about the architecture.
LLAMA_3_1_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def build(**table: Any) -> ModelConfig:
    return ModelConfig.model_validate(spell_out(table))


def from_json(path: Path, **changes: Any) -> ModelConfig:
    path.write_text(json.dumps(LLAMA_3_1_8B | changes))
    return build(huggingface=str(path))


def test_the_presets_are_those_that_are_documented() -> None:
    assert set(presets()) == {
        "debug",
        "llama-160m",
        "llama-1b",
        "llama-7b",
        "llama-13b",
        "llama-30b",
        "llama-65b",
        "llama3-8b",
        "llama3-70b",
        "llama3-405b",
    }


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads", "inner"),
    [("llama-13b", 40, 5120, 40, 13824), ("llama-30b", 60, 6656, 52, 17920), ("llama-65b", 80, 8192, 64, 22016)],
)
def test_the_study_presets_have_the_shapes_of_the_study(
    name: str, layers: int, hidden: int, heads: int, inner: int
) -> None:
    model = build(preset=name)
    shape = (model.num_hidden_layers, model.hidden_size, model.num_attention_heads, model.intermediate_size)
    assert shape == (layers, hidden, heads, inner)
    assert (model.vocab_size, model.num_key_value_heads, model.head_dim) == (128000, heads, 128)


def test_a_published_config_json_is_the_preset(tmp_path: Path) -> None:
    assert from_json(tmp_path / "config.json") == build(preset="llama3-8b")


def test_a_folder_with_a_config_json_will_do(tmp_path: Path) -> None:
    from_json(tmp_path / "config.json")
    assert build(huggingface=str(tmp_path)) == build(preset="llama3-8b")


def test_the_rotary_settings_of_transformers_5_are_understood(tmp_path: Path) -> None:
    parameters = LLAMA_3_1_8B["rope_scaling"] | {"rope_theta": 500000.0}
    new = from_json(tmp_path / "config.json", rope_scaling=None, rope_theta=None, rope_parameters=parameters)
    assert new == build(preset="llama3-8b")
    plain = {"rope_type": "default", "rope_theta": 20000.0}
    unscaled = from_json(tmp_path / "config.json", rope_scaling=None, rope_theta=None, rope_parameters=plain)
    assert (unscaled.rope_theta, unscaled.rope_scaling) == (20000.0, None)


def test_what_a_config_json_leaves_out_is_as_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers comes with the extra `dev`")
    sizes = {key: LLAMA_3_1_8B[key] for key in ("vocab_size", "hidden_size", "intermediate_size")}
    heads = {key: LLAMA_3_1_8B[key] for key in ("num_hidden_layers", "num_attention_heads")}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | sizes | heads))
    ours, theirs = build(huggingface=str(tmp_path)), transformers.LlamaConfig.from_pretrained(tmp_path)
    for key in ("num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings"):
        assert getattr(ours, key) == getattr(theirs, key)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


def test_what_transformers_writes_is_read_back(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers comes with the extra `dev`")
    scaling = LLAMA_3_1_8B["rope_scaling"]
    theirs = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=96,
        intermediate_size=200,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        rope_theta=30000.0,
        rope_scaling=scaling,
    )
    theirs.save_pretrained(tmp_path)
    ours = build(huggingface=str(tmp_path))
    assert (ours.vocab_size, ours.hidden_size, ours.intermediate_size) == (300, 96, 200)
    assert (ours.num_hidden_layers, ours.num_attention_heads, ours.num_key_value_heads) == (3, 6, 2)
    assert (ours.head_dim, ours.tie_word_embeddings, ours.rms_norm_eps) == (16, True, theirs.rms_norm_eps)
    assert ours.rope_scaling is not None
    assert (ours.rope_theta, ours.rope_scaling.factor) == (30000.0, 8.0)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("model_type", "mistral", 'only "llama" can be built'),
        ("hidden_act", "gelu", 'only "silu" can be built'),
        ("attention_bias", True, "only false can be built"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, 'only "default" and "llama3" can be built'),
        ("rope_scaling", 2.0, "it must be a table or null"),
    ],
)
def test_a_config_json_of_another_architecture_is_refused(tmp_path: Path, key: str, value: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        from_json(tmp_path / "config.json", **{key: value})


def test_a_config_json_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        build(huggingface=str(tmp_path))


def test_fields_beside_a_preset_replace_its_values() -> None:
    model = build(preset="llama-7b", num_hidden_layers=2, num_key_value_heads=8)
    assert (model.num_hidden_layers, model.num_key_value_heads, model.hidden_size) == (2, 8, 4096)


def test_heads_may_be_wider_than_their_share_of_the_model() -> None:
    model = build(preset="debug", num_attention_heads=6, num_key_value_heads=3, head_dim=16)
    assert (model.hidden_size, model.num_attention_heads * model.head_dim) == (64, 96)
