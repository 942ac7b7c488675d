"""Numbers as a person reads them, the same in every form of the report."""

from __future__ import annotations

from torchlayout.compare.report.document import Fair, LayoutResult, Parity, Ratio, Report, Spread

UNKNOWN = "\u2013"
STATUS_WORDS = {
    "ok": "measured",
    "oom": "out of memory",
    "timeout": "timed out",
    "failed": "failed",
    "skipped": "not run",
    "pending": "not run yet",
    "running": "running",
}


def percent(fraction: float | None, digits: int = 1) -> str:
    """0.534 as 53.4%."""
    return UNKNOWN if fraction is None else f"{fraction:.{digits}%}"


def seconds(value: float | None) -> str:
    """A time with three digits and the unit that suits it."""
    if value is None:
        return UNKNOWN
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 1:
        return f"{value:.3g} s" if value >= 10 else f"{value:.2f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} \u00b5s"


def spread(value: Spread | None) -> str:
    """A time with its range over the repeats, where there is one."""
    if value is None:
        return UNKNOWN
    if value.low == value.high:
        return seconds(value.median)
    return f"{seconds(value.median)} ({seconds(value.low)} to {seconds(value.high)})"


def ratio(value: Ratio | None) -> str:
    """A ratio with its interval; "no difference shown" where the interval holds 1."""
    if value is None:
        return UNKNOWN
    text = f"{value.value:.2f}x"
    if value.low is not None and value.high is not None:
        text += f" ({value.low:.2f} to {value.high:.2f})"
    return text + (", no difference shown" if value.difference_shown is False else "")


def gibibytes(value: float | None) -> str:
    """Bytes in GiB."""
    return UNKNOWN if value is None else f"{value / 2**30:.3g} GiB"


def memory(layout: LayoutResult) -> str:
    """Peak memory with the rank that has it."""
    text = gibibytes(layout.peak_memory_bytes)
    return text if layout.peak_memory_rank is None else f"{text} (rank {layout.peak_memory_rank})"


def count(value: float | None) -> str:
    """A large number with separators, or three digits where it is small."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def parity(value: Parity | None) -> str:
    """Whether the layout trained the same model, with the largest difference of its losses."""
    if value is None:
        return UNKNOWN
    difference = "not finite" if value.loss_difference is None else f"{value.loss_difference:.1e}"
    where = "" if value.loss_step is None else f" at step {value.loss_step}"
    return f"{'yes' if value.within else 'NO'}: {difference}{where}"


def fair(value: Fair | None) -> str:
    """Whether the layout ran on equal terms, and what differs."""
    if value is None:
        return UNKNOWN
    terms = value.model_dump()
    if differs := [name for name, equal in terms.items() if equal is False]:
        return f"NO: {', '.join(differs)}"
    return UNKNOWN if None in terms.values() else "yes"


def statuses(report: Report) -> str:
    """How many layouts ended how: "5 measured, 1 out of memory"."""
    found = [layout.status for layout in report.layouts]
    return ", ".join(f"{found.count(key)} {word}" for key, word in STATUS_WORDS.items() if key in found)


def parameters(value: object) -> str:
    """A number of parameters: 13.0 billion."""
    if not isinstance(value, int | float):
        return UNKNOWN
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return f"{value:,.0f}"


def setting(report: Report) -> str:
    """What was compared, in one line."""
    study = report.study
    given = study.precision
    precision = str(given.get("parameters", "")) if isinstance(given, dict) else given
    # The most telling first; what a study does not know is left out.
    name = str(study.model.get("name") or "")
    size = f"{parameters(study.model.get('parameters'))} parameters"
    devices = study.hardware.get("device_name") or study.hardware.get("device") or ""
    world = study.nproc * study.nnodes
    nodes = f" on {study.nnodes} nodes" if study.nnodes > 1 else ""
    parts = [
        f"{name}, {size}" if name else size,
        f"{world} ranks{nodes}" + (f" ({devices})" if devices else ""),
        f"{study.global_batch} sequences of {study.sequence:,} tokens a step",
        precision,
        f"{study.steps} steps, {study.warmup_steps} of them warm-up",
        f"{study.repeats} repeat{'s' if study.repeats != 1 else ''}",
    ]
    return "; ".join(part for part in parts if part)
