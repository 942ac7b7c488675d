"""The shape of a Llama as a value, with Hugging Face's names; presets and config.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from torchlayout.config.sections import Dimension
from torchlayout.errors import InputError
from torchlayout.files import read_text, read_toml
from torchlayout.layout.rules import divisors
from torchlayout.layout.words import nearest
from torchlayout.tables import Section, refuse, shown

PRESETS = Path(__file__).parent / "presets"

HUGGINGFACE_EPSILON = 1e-6
"""What transformers takes for `rms_norm_eps` where a config.json leaves it out; every other default is ours too."""

Positive = Annotated[float, Field(gt=0, le=1e12)]


class RopeScaling(Section):
    """Llama 3.1's stretching of the rotary frequencies to longer sequences."""

    rope_type: Literal["llama3"] = "llama3"
    """Kind of scaling."""
    factor: Annotated[float, Field(ge=1, le=1e6)]
    """How much longer low frequencies become."""
    low_freq_factor: Positive
    """Wavelengths above `original_max_position_embeddings` / this are stretched by `factor`."""
    high_freq_factor: Positive
    """Wavelengths below `original_max_position_embeddings` / this are kept."""
    original_max_position_embeddings: Dimension
    """Sequence length before stretching."""

    @model_validator(mode="after")
    def _has_a_band(self) -> RopeScaling:
        if self.low_freq_factor >= self.high_freq_factor:
            raise refuse(
                f"model.rope_scaling.low_freq_factor = {self.low_freq_factor} must be below "
                f"model.rope_scaling.high_freq_factor = {self.high_freq_factor}"
            )
        return self


class ModelConfig(Section):
    """A Llama: embedding, blocks of grouped-query attention and SwiGLU, head."""

    vocab_size: Dimension
    """Rows of the embedding and of the head."""
    hidden_size: Dimension
    """Width of the residual stream."""
    intermediate_size: Dimension
    """Width inside the feed-forward part."""
    num_hidden_layers: Annotated[int, Field(ge=1, le=2**16)]
    """Blocks."""
    num_attention_heads: Dimension
    """Query heads."""
    num_key_value_heads: Dimension = Field(default_factory=lambda given: given["num_attention_heads"])
    """Key and value heads; left out: as many as query heads."""
    head_dim: Dimension = Field(
        default_factory=lambda given: max(1, given["hidden_size"] // given["num_attention_heads"])
    )
    """Width of a head, even; left out: `hidden_size` / `num_attention_heads`."""
    rope_theta: Positive = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    """Scaling of the rotary frequencies; left out: none."""
    rms_norm_eps: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Added to the mean square in the norms."""
    tie_word_embeddings: bool = False
    """Whether the head uses the embedding's weights."""

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelConfig:
        heads, groups, problems = self.num_attention_heads, self.num_key_value_heads, []
        if heads % groups:
            legal = [str(divisor) for divisor in divisors(heads)]
            problems.append(
                f"model.num_key_value_heads = {groups} does not divide model.num_attention_heads = {heads}; "
                f"legal: {', '.join(legal)}"
            )
        if "head_dim" not in self.model_fields_set and self.hidden_size % heads:
            below = self.hidden_size // heads * heads
            problems.append(
                f"model.hidden_size = {self.hidden_size} is not a multiple of model.num_attention_heads = {heads}; "
                f"give model.head_dim, or a width such as {below or heads} or {below + heads}"
            )
        elif self.head_dim % 2:
            problems.append(
                f"model.head_dim = {self.head_dim} is odd, and rotary embedding turns pairs; "
                f"legal are even widths such as {self.head_dim + 1}"
            )
        if problems:
            raise refuse(*problems)
        return self


def presets() -> tuple[str, ...]:
    """Names of the models that `preset` may name."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def spell_out(raw: dict[str, Any]) -> dict[str, Any]:
    """The [model] table with `preset` or `huggingface` replaced by fields; fields beside them win.

    Raises InputError where the preset is unknown or the config.json is no Llama this project can build.
    """
    fields = {key: value for key, value in raw.items() if key not in ("preset", "huggingface")}
    if "preset" in raw and "huggingface" in raw:
        raise InputError("model.preset cannot stand beside model.huggingface; name the model by one of them")
    for key in ("preset", "huggingface"):
        if key in raw and not isinstance(raw[key], str):
            raise InputError(f"model.{key} = {shown(raw[key])} is not a text; give a name in quotes")
    if "preset" in raw:
        return _merged(_preset(raw["preset"]), fields)
    if "huggingface" in raw:
        return _merged(read_huggingface(Path(raw["huggingface"])), fields)
    required = [name for name, field in ModelConfig.model_fields.items() if field.is_required()]
    missing = [name for name in required if name not in fields]
    if missing:
        raise InputError(
            f'[model] lacks {", ".join(missing)}; give preset = "llama-1b" (or another), '
            f'huggingface = "path/to/config.json", or all of {", ".join(required)}'
        )
    return fields


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = base | over
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = base[key] | value
    return merged


def _preset(name: str) -> dict[str, Any]:
    if name not in presets():
        raise InputError(f"model.preset = {shown(name)} is unknown; {nearest(name, presets())}")
    return read_toml(PRESETS / f"{name}.toml")


def read_huggingface(path: Path) -> dict[str, Any]:
    """The fields of ModelConfig from a Hugging Face Llama config.json, or from a folder that holds one.

    Understands both spellings of the rotary settings: `rope_theta` with `rope_scaling`, and `rope_parameters`
    (transformers 5). Raises InputError where it cannot be read or asks for what this model does not compute.
    """
    path = path / "config.json" if path.is_dir() else path
    text = read_text(path)
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("model_type") != "llama":
        kind = raw.get("model_type") if isinstance(raw, dict) else None
        raise InputError(f'{path} has model_type = {shown(kind)}; only "llama" can be built')
    # What a Llama config.json may switch on that this model does not compute, with the value that is off.
    for key, legal in {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}.items():
        if raw.get(key, legal) != legal:
            raise InputError(f"{path} has {key} = {shown(raw[key])}; only {shown(legal)} can be built")
    fields = {key: raw[key] for key in ModelConfig.model_fields if raw.get(key) is not None}
    return {"rms_norm_eps": HUGGINGFACE_EPSILON} | fields | _rotary(path, raw)


def _rotary(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling")
    if scaling is None:
        return {}
    if not isinstance(scaling, dict):
        raise InputError(f"{path} has rope_scaling = {shown(scaling)}; it must be a table or null")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    theta = {"rope_theta": scaling["rope_theta"]} if "rope_theta" in scaling else {}
    if kind == "default":
        return theta | {"rope_scaling": None}
    if kind != "llama3":
        raise InputError(f'{path} has rope_type = {shown(kind)}; only "default" and "llama3" can be built')
    fields = {key: scaling[key] for key in RopeScaling.model_fields if key in scaling}
    return theta | {"rope_scaling": fields | {"rope_type": "llama3"}}
