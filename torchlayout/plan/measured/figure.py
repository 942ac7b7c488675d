"""Predicted against measured step times as a picture, one colour a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchlayout.errors import InputError
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.measured.predict import Machines, predict, timed
from torchlayout.plan.measured.runs import Run

BAND = 0.1
"""Errors inside the grey band."""
FORMATS = (".png", ".svg", ".pdf")


def check_figure(path: Path) -> None:
    """Raises InputError where the name of a file is that of no picture."""
    if path.suffix not in FORMATS:
        raise InputError(f"--plot {path} is of no known format; legal: FILE{', FILE'.join(FORMATS)}")


def write_figure(runs: Sequence[Run], calibration: Calibration | None, path: Path) -> None:
    """Draws the runs whose time counts; raises InputError where none does."""
    predictions = timed(predict(runs, Machines(calibration))[0])
    if not predictions:
        raise InputError(f"--plot {path}: no row has a step time that counts; give rows that have")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--plot needs matplotlib, which is not installed; pip install matplotlib") from error

    figure = Figure(figsize=(7, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    times = [seconds for p in predictions for seconds in (p.seconds, p.measured_seconds)]
    ends = [min(times) / 1.2, max(times) * 1.2]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(
        ends, [(1 - BAND) * t for t in ends], [(1 + BAND) * t for t in ends], color="0.85", label=f"within {BAND:.0%}"
    )
    for source in dict.fromkeys(p.run.source for p in predictions):
        mine = [p for p in predictions if p.run.source == source]
        label = f"{source} ({len(mine)})"
        axes.scatter([p.measured_seconds for p in mine], [p.seconds for p in mine], s=9, alpha=0.6, label=label)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel="measured seconds a step", ylabel="predicted seconds a step")
    axes.legend(fontsize=7, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
