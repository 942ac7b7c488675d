"""Contrasts of a study as arXiv 2311.05610 shows them: the best layout for each value of a choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from torchlayout.compare.report.document import LayoutResult, Report, step_median

Axes = dict[str, int | bool | str]


@dataclass(frozen=True)
class Bar:
    """The best layout for one value of a choice."""

    value: str
    label: str
    speed: float
    """MFU, or tokens/s of a device where MFU is not known."""
    low: float
    high: float
    """The same, from the slowest and the fastest repeat."""


@dataclass(frozen=True)
class Contrast:
    """The best layout for each value of a choice, in the order of the values."""

    name: str
    title: str
    axis: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Grid:
    """The best layout for each pair of tensor degree (rows) and pipeline degree (columns); None: none ran."""

    name: str
    title: str
    tensor: tuple[int, ...]
    pipeline: tuple[int, ...]
    cells: tuple[tuple[Bar | None, ...], ...]


def uses_mfu(report: Report) -> bool:
    """Whether speeds are MFU; otherwise they are tokens/s of a device."""
    measured = report.measured
    return bool(measured) and all(layout.mfu is not None for layout in measured)


def speed(layout: LayoutResult, mfu: bool) -> float | None:
    """MFU, or tokens/s of a device."""
    return layout.mfu if mfu else layout.tokens_per_second_per_device


@dataclass(frozen=True)
class _Choice:
    name: str
    title: str
    axis: str
    value: Callable[[Axes], Hashable]
    """What sorts and groups; a layout without it (None) has no part in the contrast."""
    shown: Callable[[Hashable], str] = str


def _recomputes(axes: Axes) -> Hashable:
    return axes.get("recompute", "none") != "none"


def _sequence_parallel(axes: Axes) -> Hashable:
    # Without tensor parallelism there is nothing to cut along the sequence: such layouts say nothing here.
    return bool(axes.get("sequence_parallel")) if _degree(axes, "tensor") > 1 else None


def _degree(axes: Axes, name: str) -> int:
    value = axes.get(name, 1)
    return value if isinstance(value, int) else 1


def _switch(on: str, off: str) -> Callable[[Hashable], str]:
    return lambda value: on if value else off


_CHOICES = (
    _Choice(
        "micro_batch", "Best by micro-batch size", "sequences in a micro-batch", lambda a: _degree(a, "micro_batch")
    ),
    _Choice("recomputation", "Best with and without recomputation", "recomputation", _recomputes, _switch("on", "off")),
    _Choice("attention", "Best by attention kernel", "attention kernel", lambda a: str(a.get("attention", "sdpa"))),
    _Choice("norm", "Best by RMSNorm kernel", "RMSNorm kernel", lambda a: str(a.get("norm", "fused"))),
    _Choice(
        "sequence_parallel",
        "Best with and without sequence parallelism",
        "sequence parallelism (tensor degree above 1)",
        _sequence_parallel,
        _switch("on", "off"),
    ),
)


def contrasts(report: Report) -> Iterator[Contrast]:
    """The choices in which at least two values were measured."""
    mfu = uses_mfu(report)
    measured = [layout for layout in report.measured if speed(layout, mfu) is not None and layout.axes]
    for choice in _CHOICES:
        groups: dict[Hashable, list[LayoutResult]] = {}
        for layout in measured:
            if (value := choice.value(layout.axes)) is not None:
                groups.setdefault(value, []).append(layout)
        if len(groups) > 1:
            values = sorted(groups)  # type: ignore[type-var]
            bars = tuple(_bar(choice.shown(value), groups[value], mfu) for value in values)
            yield Contrast(choice.name, choice.title, choice.axis, bars)


def tensor_against_pipeline(report: Report) -> Grid | None:
    """Best speed by tensor and pipeline degree; None where only one pair was measured."""
    mfu = uses_mfu(report)
    groups: dict[tuple[int, int], list[LayoutResult]] = {}
    for layout in report.measured:
        if speed(layout, mfu) is not None and layout.axes:
            pair = (_degree(layout.axes, "tensor"), _degree(layout.axes, "pipeline"))
            groups.setdefault(pair, []).append(layout)
    if len(groups) < 2:
        return None
    tensor = tuple(sorted({pair[0] for pair in groups}))
    pipeline = tuple(sorted({pair[1] for pair in groups}))
    cells = tuple(
        tuple(_bar(f"tp{t}, pp{p}", groups[t, p], mfu) if (t, p) in groups else None for p in pipeline) for t in tensor
    )
    return Grid("tensor_pipeline", "Best by tensor and pipeline degree", tensor, pipeline, cells)


def _bar(value: str, layouts: Sequence[LayoutResult], mfu: bool) -> Bar:
    best = max(layouts, key=lambda layout: speed(layout, mfu) or 0.0)
    top, step = speed(best, mfu) or 0.0, best.step_seconds
    # Speed and step time are inverse: the slowest repeat gives the lower end.
    low = top * step_median(best) / step.high if step and step.high > 0 else top
    high = top * step_median(best) / step.low if step and step.low > 0 else top
    return Bar(value, best.label, top, low, high)
