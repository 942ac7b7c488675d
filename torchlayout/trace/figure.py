"""The timeline as a picture: a lane for each rank, the first steps side by side, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchlayout.files import write_atomically
from torchlayout.trace.timeline import DOING, TRANSFERRING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

COLOURS = {
    "forward": "#4c78a8",
    "backward": "#72b7b2",
    "weight": "#a3c9a8",
    "bubble": "#e4e4e4",
    "communication": "#e45756",
    "idle": "#f7f3d0",
    "data": "#b279a2",
    "optimizer": "#f58518",
    "checkpoint": "#9d755d",
    "other": "#bab0ac",
}
MOST_LANES = 64
MOST_STEPS = 4
# A pixel of a step, about; what is shorter, or as close to its like, nobody could see apart.
FINEST = 1 / 1000
# Micro-batches are numbered where there is room for a number.
SMALLEST_LABEL = 0.012


def draw(document: Mapping[str, Any], folder: Path) -> None:
    """Write timeline.png and timeline.svg for a timeline document with at least one step."""
    from matplotlib import rc_context

    figure = _figure(document)
    # The same timeline gives the same bytes.
    with rc_context({"svg.hashsalt": "timeline"}):
        for kind in ("png", "svg"):
            target = BytesIO()
            figure.savefig(target, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else None)
            write_atomically(folder / f"timeline.{kind}", target.getvalue())


def _figure(document: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    steps = document["steps"][:MOST_STEPS]
    lanes = max(min(len(step["lanes"]), MOST_LANES) for step in steps)
    figure = Figure(figsize=(min(24.0, 4 + 7.0 * len(steps)), 1.8 + 0.36 * lanes), layout="constrained")
    used: set[str] = set()
    for place, step in enumerate(steps, start=1):
        used |= _draw_step(figure.add_subplot(1, len(steps), place), document, step)
    handles = [Patch(facecolor=colour, label=kind) for kind, colour in COLOURS.items() if kind in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(10, max(1, len(handles))), frameon=False)
    return figure


def _draw_step(axes: Axes, document: Mapping[str, Any], step: Mapping[str, Any]) -> set[str]:
    kinds, lanes = document["kinds"], step["lanes"][:MOST_LANES]
    length_ms = step["seconds"] * 1e3
    used: set[str] = set()
    for row, lane in enumerate(lanes):
        for track, place, height in ((DOING, row - 0.4, 0.6), (TRANSFERRING, row + 0.24, 0.16)):
            bars = _bars((event for event in lane["events"] if event[2] == track), FINEST * length_ms * 1e3)
            for kind in sorted({kind for *_, kind in bars}):
                used.add(kinds[kind])
                spans = np.array([(start, end) for start, end, one in bars if one == kind]) / 1e3
                axes.add_artist(_boxes(spans, place, place + height, COLOURS[kinds[kind]]))
        _number(axes, lane, row, length_ms)
    unseen = len(step["lanes"]) - len(lanes)
    axes.set_title(f"step {step['step']}: {length_ms:,.4g} ms" + (f", {unseen} more ranks not drawn" if unseen else ""))
    axes.set_xlabel("ms")
    axes.set_yticks(range(len(lanes)), [f"rank {lane['rank']}" for lane in lanes])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, length_ms)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return used


def _bars(events: Iterable[list[Any]], finest: float) -> list[tuple[float, float, int]]:
    """Start, end and kind of what is drawn of a track: neighbours of a kind as one, and so what is too short to see.

    Short ones together have the kind that takes most of them.
    """
    bars: list[tuple[float, float, dict[int, float]]] = []
    for start, duration, _, kind, _, _, micro_batch, _ in events:
        since, reached, kinds = bars[-1] if bars else (0.0, -finest, {})
        alike = micro_batch < 0 and kinds.keys() == {kind}
        short = max(duration, reached - since) < finest
        if start - reached < finest and (alike or short):
            kinds[kind] = kinds.get(kind, 0.0) + duration
            bars[-1] = (since, max(reached, start + duration), kinds)
        else:
            bars.append((start, start + duration, {kind: duration}))
    return [(start, end, max(kinds, key=lambda kind: kinds[kind])) for start, end, kinds in bars]


def _boxes(spans: NDArray[np.float64], low: float, high: float, colour: str) -> Patch:
    """All bars of a kind as one shape: an SVG of tens of thousands of shapes takes ten seconds to write."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = np.empty((len(spans), 5, 2))
    corners[:, :, 0] = spans[:, (0, 1, 1, 0, 0)]
    corners[:, :, 1] = (low, low, high, high, low)
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(spans))
    return PathPatch(Path(corners.reshape(-1, 2), codes), facecolor=colour, linewidth=0)


def _number(axes: Axes, lane: Mapping[str, Any], row: int, length_ms: float) -> None:
    for start, duration, track, _, _, _, micro_batch, _ in lane["events"]:
        if track == DOING and micro_batch >= 0 and duration / 1e3 > SMALLEST_LABEL * length_ms:
            axes.text(
                (start + duration / 2) / 1e3,
                row - 0.1,
                str(micro_batch),
                ha="center",
                va="center",
                fontsize=6,
                color="white",
            )
