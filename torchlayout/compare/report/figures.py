"""Figures of a study by matplotlib, each as PNG and SVG: those of arXiv 2311.05610, and some that TensorBoard shows.

A figure is drawn only when the study has what it contrasts.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchlayout.compare.report.contrasts import (
    Bar,
    Contrast,
    Grid,
    contrasts,
    speed,
    tensor_against_pipeline,
    uses_mfu,
)
from torchlayout.compare.report.document import LayoutResult, Report, step_median
from torchlayout.layout.family import COLOURS, family

# What is drawn in this colour is text, axes and ticks: the page replaces it by its own, for its dark theme.
INK = "#1b1f27"
SOFT = "#5b6472"
ACCENT = "#2f6fde"
LAYOUTS_IN_BARS = 24
LAYOUTS_IN_LOSSES = 12
STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlepad": 12,
    "svg.hashsalt": "torchlayout",  # the same figure gives the same file
    "svg.fonttype": "path",
    "text.parse_math": False,  # a label with two dollar signs is no formula
}


@dataclass(frozen=True)
class Drawn:
    """A figure as files."""

    name: str
    title: str
    png: bytes
    svg: str
    interactive: bool
    """Whether report.html draws the same thing itself, so that the file is for other readers only."""


def draw(report: Report) -> list[Drawn]:
    """Every figure that the study has the data for."""
    with matplotlib.rc_context(STYLE):
        return list(_draw(report))


def save(figures: list[Drawn], directory: Path) -> None:
    """Writes each figure as .png and .svg; figures of an earlier report that are no longer drawn are removed."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {f"{figure.name}.png": figure.png for figure in figures}
    files |= {f"{figure.name}.svg": figure.svg.encode() for figure in figures}
    for old in directory.iterdir():
        if old.suffix in (".png", ".svg") and old.name not in files:
            old.unlink()
    for name, content in files.items():
        half = directory / f".{name}.half"
        half.write_bytes(content)
        half.replace(directory / name)


def _draw(report: Report) -> Iterator[Drawn]:
    mfu = uses_mfu(report)
    measured = report.measured
    if any(speed(layout, mfu) is not None and layout.peak_memory_bytes is not None for layout in measured):
        title = f"{'MFU' if mfu else 'Speed'} against peak memory"
        yield _file("speed_memory", title, lambda axes: _scatter(axes, measured, mfu), interactive=True)
    if measured:
        yield _file("step_time", "Step time", lambda axes: _steps(axes, measured), True, _height(len(measured)))
    if any(layout.losses for layout in measured):
        yield _file("losses", "Loss", lambda axes: _losses(axes, measured), interactive=True)
    for contrast in contrasts(report):
        yield _file(contrast.name, contrast.title, lambda axes, c=contrast: _bars(axes, c, mfu))  # type: ignore[misc]
    if grid := tensor_against_pipeline(report):
        size = 1.4 + 0.7 * len(grid.tensor)
        yield _file(grid.name, grid.title, lambda axes: _grid(axes, grid, mfu), height=max(size, 2.6))


def _file(name: str, title: str, plot: Callable[[Axes], None], interactive: bool = False, height: float = 3.6) -> Drawn:
    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.add_subplot()
    plot(axes)
    axes.set_title(title)
    # Once, and not in each of the four drawings that two files take: a third of the time.
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine("none")
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png", dpi=144, metadata={"Software": None})
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Drawn(name, title, png.getvalue(), svg.getvalue(), interactive)


def _unit(mfu: bool) -> str:
    return "MFU" if mfu else "tokens/s a device"


def _shown(value: float, mfu: bool) -> str:
    return f"{value:.1%}" if mfu else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _scale(axis: Any, mfu: bool) -> None:
    axis.set_major_formatter(lambda value, _: f"{value:.0%}" if mfu else f"{value:,.6g}")


def _bars(axes: Axes, contrast: Contrast, mfu: bool) -> None:
    places = range(len(contrast.bars))
    heights = [bar.speed for bar in contrast.bars]
    best = max(heights)
    axes.bar(places, heights, width=0.6, color=[ACCENT if h == best else "#9db7e3" for h in heights])
    for place, bar in zip(places, contrast.bars, strict=True):
        if bar.low < bar.high:
            axes.errorbar(place, bar.speed, [[bar.speed - bar.low], [bar.high - bar.speed]], color=SOFT, capsize=3)
        axes.annotate(
            _shown(bar.speed, mfu), (place, bar.high), (0, 3), textcoords="offset points", ha="center", weight="bold"
        )
    axes.set_xticks(list(places), [f"{bar.value}\n{_short(bar.label, 22)}" for bar in contrast.bars])
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.7, len(heights) - 0.3)
    axes.set_ylim(0, best * 1.18 or 1)
    axes.set(xlabel=contrast.axis, ylabel=_unit(mfu))
    _scale(axes.yaxis, mfu)


def _grid(axes: Axes, grid: Grid, mfu: bool) -> None:
    speeds = [[cell.speed if cell else float("nan") for cell in row] for row in grid.cells]
    top = max(value for row in speeds for value in row if value == value)
    # From half a tint on, so that a slow cell differs from an empty one; figures on it stay black on light.
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("speed", ["#e8effb", "#8fb4f2"])
    axes.imshow(speeds, cmap=colours, aspect="auto", vmin=0, vmax=top)
    room = 96 // len(grid.pipeline)  # characters of a label in a column
    for row, cells in enumerate(grid.cells):
        for column, cell in enumerate(cells):
            _cell(axes, column, row, cell, top, mfu, room if room >= 20 else 0)
    axes.set_xticks(range(len(grid.pipeline)), [str(degree) for degree in grid.pipeline])
    axes.set_yticks(range(len(grid.tensor)), [str(degree) for degree in grid.tensor])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel=f"pipeline degree (figures: best {_unit(mfu)})", ylabel="tensor degree")


def _cell(axes: Axes, column: int, row: int, cell: Bar | None, top: float, mfu: bool, room: int) -> None:
    if cell is None:
        axes.text(column, row, "\u2013", ha="center", va="center", color=SOFT)
        return
    # Not INK: the cells are light in both themes.
    dark, weight = "#101418", "bold" if cell.speed == top else "normal"
    above = 0.12 if room else 0
    axes.text(column, row - above, _shown(cell.speed, mfu), ha="center", va="center", color=dark, weight=weight)
    if room:
        axes.text(column, row + 0.22, _short(cell.label, room), ha="center", va="center", color=dark, fontsize=8)


def _scatter(axes: Axes, measured: list[LayoutResult], mfu: bool) -> None:
    shown: dict[str, list[tuple[float, float]]] = {}
    for layout in measured:
        value = speed(layout, mfu)
        if value is not None and layout.peak_memory_bytes is not None:
            shown.setdefault(family(layout.axes), []).append((layout.peak_memory_bytes / 2**30, value))
    for name, points in shown.items():
        memory, speeds = zip(*points, strict=True)
        axes.scatter(memory, speeds, s=36, color=COLOURS[name], alpha=0.85, linewidths=0, label=name)
    axes.set(xlabel="peak memory of the worst rank in GiB", ylabel=_unit(mfu))
    _scale(axes.yaxis, mfu)
    axes.legend(frameon=False, fontsize=8)


def _height(layouts: int) -> float:
    return 1.2 + 0.28 * min(layouts, LAYOUTS_IN_BARS)


def _steps(axes: Axes, measured: list[LayoutResult]) -> None:
    shown = measured[:LAYOUTS_IN_BARS]
    places = range(len(shown))
    medians = [step_median(layout) for layout in shown]
    axes.barh(places, medians, color=[COLOURS[family(layout.axes)] for layout in shown], height=0.7)
    for place, layout in zip(places, shown, strict=True):
        ours = layout.step_seconds
        if ours is not None and ours.low < ours.high:
            axes.errorbar(ours.median, place, xerr=[[ours.median - ours.low], [ours.high - ours.median]], color=SOFT)
    axes.set_yticks(list(places), [_short(layout.label, 36) for layout in shown], fontsize=8)
    axes.invert_yaxis()
    more = f" (the fastest {len(shown)} of {len(measured)})" if len(measured) > len(shown) else ""
    axes.set_xlabel(f"seconds a step{more}")


def _losses(axes: Axes, measured: list[LayoutResult]) -> None:
    shown = [layout for layout in measured if layout.losses][:LAYOUTS_IN_LOSSES]
    for layout in shown:
        losses = [float("nan") if loss is None else loss for loss in layout.losses]
        axes.plot(range(1, len(losses) + 1), losses, linewidth=1.2, alpha=0.8, label=_short(layout.label, 30))
    axes.set(xlabel="step", ylabel="loss")
    axes.legend(frameon=False, fontsize=7)


def _short(label: str, most: int) -> str:
    flat = " ".join(label.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}\u2026"
