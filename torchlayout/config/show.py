"""The configuration for readers: the commented default file, and a JSON Schema for editors."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticUndefined

from torchlayout.config.load import SECTIONS, Config
from torchlayout.config.model import presets

# What a file must say, and has no default: an example that works once the quickstart's corpus is prepared.
REQUIRED = {"data.path": '"data/python-library"'}


def commented_default() -> str:
    """A TOML file with every key: its meaning in a comment, its default as the value."""
    import tomli_w

    lines: list[str] = []
    for name, section in SECTIONS.items():
        lines += [f"# {Config.model_fields[name].description}", f"[{name}]"]
        if name == "model":
            lines += [f"# A model by name: {', '.join(presets())}.", 'preset = "debug"']
            lines += ["# Or the config.json of a Hugging Face Llama.", "# huggingface ="]
            lines += ["# Or its fields; beside preset or huggingface they replace single values."]
        for key, field in section.model_fields.items():
            lines.append(f"# {field.description}")
            default = field.get_default()
            if example := REQUIRED.get(f"{name}.{key}"):
                lines.append(f"{key} = {example}")
            elif default is PydanticUndefined or default is None:
                lines.append(f"# {key} =")
            else:
                value = list(default) if isinstance(default, tuple) else default
                text = tomli_w.dumps({key: value}).replace("\n    ", " ").replace(",\n]", "]").strip()
                lines.append(f"# {text}" if name == "model" else text)
        lines.append("")
    return "\n".join(lines)


def schema() -> dict[str, Any]:
    """JSON Schema of a configuration file, with `preset` and `huggingface` as ways to give the model."""
    described = Config.model_json_schema()
    model = described["$defs"]["ModelConfig"]
    fields = model.pop("required")
    model["properties"] = {
        "preset": {"type": "string", "enum": list(presets()), "description": "A model by name."},
        "huggingface": {"type": "string", "description": "The config.json of a Hugging Face Llama."},
    } | model["properties"]
    model["anyOf"] = [{"required": ["preset"]}, {"required": ["huggingface"]}, {"required": fields}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | described
