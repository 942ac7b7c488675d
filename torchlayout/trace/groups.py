"""The process groups of a rank, and the axis of its layout that each runs along."""

from __future__ import annotations

from typing import Any, NamedTuple

from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.trace.names import axis
from torchlayout.trace.read import whole


class Group(NamedTuple):
    """A process group: the axis it runs along, and its ranks (empty where the trace does not say)."""

    axis: str
    ranks: tuple[int, ...]


def read_groups(header: dict[str, Any]) -> dict[str, Group]:
    """The groups that the header of a trace describes, by name."""
    spread, sole = header.get("distributedInfo"), _sole_axis(read_degrees(header))
    described = spread.get("pg_config") if isinstance(spread, dict) else None
    found = {}
    for group in described if isinstance(described, list) else []:
        if isinstance(group, dict) and "pg_name" in group:
            named = axis(str(group.get("pg_desc", "")))
            listed = group.get("ranks")
            ranks = tuple(whole(rank) for rank in listed) if isinstance(listed, list) else ()
            found[str(group["pg_name"])] = Group(sole if sole and named == "world" else named, ranks)
    return found


def read_degrees(header: dict[str, Any]) -> dict[str, int]:
    """The degree of each axis by the layout that the trainer wrote; empty for traces of something else."""
    facts = header.get("torchlayout")
    try:
        layout = Layout.parse(str(facts.get("layout"))) if isinstance(facts, dict) else None
    except InputError:
        return {}
    if layout is None:
        return {}
    return {
        "pp": layout.pipeline,
        "dp": layout.replicate,
        "fsdp": layout.shard * layout.context,
        "cp": layout.context,
        "tp": layout.tensor,
        "world": layout.world,
    }


def _sole_axis(degrees: dict[str, int]) -> str | None:
    """The axis that takes up the whole world.

    DeviceMesh makes no group for such an axis but uses the default one, which is not described by the axis' name.
    """
    axes = ("pp", "dp", "fsdp", "tp")
    return next((name for name in axes if degrees.get(name) == degrees.get("world", 0) > 1), None)
