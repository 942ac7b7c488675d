"""Tables of a TOML file as frozen, validated values, and their errors as sentences for a person."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from torchlayout.layout.words import nearest

# What each of pydantic's error types says after "key = value", and which entry of its context completes it.
RULES: Mapping[str, str] = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "is not a finite number",
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "bool_type": "is neither true nor false",
    "string_type": "is not a text in quotes",
    "tuple_type": "is not an array",
    "too_long": "has more than {max_length} entries",
    "string_too_short": "is empty",
    "string_too_long": "is longer than {max_length} characters",
    "model_type": "is not a table of keys",
    "model_attributes_type": "is not a table of keys",
}
NAME_PATTERN = "must be a folder name: letters, digits and . _ + - after a letter or a digit"


class Section(BaseModel):
    """A table of a TOML file: unknown keys, wrong types and non-finite numbers are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def refuse(*sentences: str) -> PydanticCustomError:
    """An error for a validator to raise, whose sentences reach the user word for word."""
    return PydanticCustomError("sentences", "{text}", {"text": "\n".join(sentences)})


def shown(value: Any) -> str:
    """A value as TOML would have it, on one line and never longer than 60 characters."""
    if isinstance(value, dict):
        return "{...}" if value else "{}"
    if isinstance(value, list | tuple):
        text = f"[{', '.join(shown(item) for item in value[:4])}{', ...' if len(value) > 4 else ''}]"
    elif value is None or isinstance(value, bool | str):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"  # Python refuses to print very long ones
    elif isinstance(value, datetime.date | datetime.time):
        text = value.isoformat()
    else:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:40]}...{text[-10:]}"


def sentences(error: ValidationError, section: str, model: type[BaseModel]) -> list[str]:
    """The errors of one section, a sentence each, with the nearest legal key where a key is unknown."""
    problems: list[str] = []
    for detail in error.errors(include_url=False):
        if detail["type"] == "default_factory_not_called":
            continue  # the field it depends on is wrong, which is said already
        if detail["type"] == "sentences":
            problems += detail["msg"].split("\n")
            continue
        key = _key(section, detail["loc"])
        if detail["type"] == "extra_forbidden":
            legal = _legal_keys(model, detail["loc"][:-1])
            problems.append(f"{key} is not a key; {nearest(str(detail['loc'][-1]), legal)}")
        elif detail["type"] == "missing":
            problems.append(f"{key} is missing")
        else:
            problems.append(f"{key} = {shown(detail['input'])} {_rule(detail)}")
    return problems


def _rule(detail: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "literal_error":
        word = detail["input"] if isinstance(detail["input"], str) else ""
        legal = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"is not a legal value; {nearest(word, legal)}"
    if kind == "string_pattern_mismatch":
        return NAME_PATTERN
    rule = RULES.get(kind)
    return rule.format(**context) if rule else f"cannot be: {detail['msg']}"


def _key(section: str, location: tuple[str | int, ...]) -> str:
    key = section
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    return key


def _legal_keys(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    for part in location:
        annotation = model.model_fields[str(part)].annotation
        # A table, or a table that may be left out.
        kinds = (annotation, *get_args(annotation))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(model.model_fields)
