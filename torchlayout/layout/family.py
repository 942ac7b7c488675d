"""The kinds of layout that figures and tables tell apart by colour."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Okabe and Ito's colours and their neighbours: people with any kind of colour blindness can tell them apart.
COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "FSDP": "#0072b2",
        "replicated": "#56a8d8",
        "tensor": "#d98c00",
        "pipeline": "#009e73",
        "3-D": "#cc5f94",
        "context": "#8a63d2",
        "other": "#7a828e",
    }
)


def family(axes: Mapping[str, object]) -> str:
    """The kind of a layout, by the axes that it uses."""

    def used(axis: str) -> bool:
        degree = axes.get(axis, 1)
        return isinstance(degree, int) and degree > 1

    if not axes:
        return "other"
    if used("context"):
        return "context"
    if used("pipeline"):
        return "3-D" if used("tensor") else "pipeline"
    if used("tensor"):
        return "tensor"
    return "replicated" if used("replicate") else "FSDP"
