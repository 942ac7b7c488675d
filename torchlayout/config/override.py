"""`section.key=value` from the command line, put into the tables of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchlayout.errors import InputError
from torchlayout.files import parse_toml
from torchlayout.layout.words import nearest


def override(raw: dict[str, Any], text: str, keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The tables with one value replaced; `keys` are the legal keys of each section.

    Raises InputError where `text` is no assignment to a key of a section.
    """
    name, equals, value = text.partition("=")
    path = [part.strip() for part in name.split(".")]
    if not equals or not all(path):
        raise InputError(f"--set {text} is no assignment; write --set section.key=value")
    if len(path) == 1:
        raise InputError(_not_a_key(path[0], keys))
    return _put(raw, path, _parse(value), text)


def _not_a_key(name: str, keys: Mapping[str, tuple[str, ...]]) -> str:
    if name in keys:
        return f"--set {name}=... would replace a whole section; set one of its keys, such as {name}.{keys[name][0]}"
    homes = [f"{section}.{name}" for section, legal in keys.items() if name in legal]
    if homes:
        return f"--set {name}=... names no section; did you mean {' or '.join(homes)}?"
    return f"--set {name}=... names no section; {nearest(name, keys)}"


def _put(table: dict[str, Any], path: list[str], value: Any, text: str) -> dict[str, Any]:
    if len(path) == 1:
        return table | {path[0]: value}
    inner = table.get(path[0], {})
    if not isinstance(inner, dict):
        raise InputError(f"--set {text} goes into {path[0]}, which is a value and has no keys")
    return table | {path[0]: _put(inner, path[1:], value, text)}


def _parse(value: str) -> Any:
    try:
        tables = parse_toml(f"value = {value}")
    except (ValueError, RecursionError):
        return value.strip()  # what is not a TOML value is a text, so that --set run.name=first needs no quotes
    return tables["value"] if tables.keys() == {"value"} else value.strip()
