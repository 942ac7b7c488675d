"""Tables of `torchlayout plan accuracy` and `torchlayout plan fit`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from torchlayout.plan.measured.accuracy import Accuracy, Method, Sheet
    from torchlayout.plan.measured.confusion import Confusion
    from torchlayout.plan.measured.crossed import Fold
    from torchlayout.plan.measured.fit import Fit
    from torchlayout.plan.measured.metrics import Errors
    from torchlayout.plan.measured.regret import Regret

UNLIMITED = 10_000  # columns, where nobody's screen limits them
METHOD = ("rows", "median", "p90", "mean", "worst", "bias", "Spearman", "in groups")
REGRET = ("settings", "mean points", "worst", "mean %", "top-3 points", "top-3 %", "oom picks", "no pick")


def print_accuracy(result: Accuracy) -> None:
    """What was read, then a table for each question."""
    for sheet in result.sheets:
        _print_facts(sheet)
    for calibration in dict.fromkeys(calibration for sheet in result.sheets for calibration in sheet.calibrations):
        print(f"calibration {calibration}")
    times = [row for sheet in result.sheets for row in _times(sheet)]
    _table("step time: |predicted / measured - 1|", ("source", "by", *METHOD), times)
    title = f"regret of picks that leave {result.margin_gib:g} GiB free, in points of MFU and % of the best"
    _table(title, ("source", "by", *REGRET), [row for sheet in result.sheets for row in _regrets(sheet)])
    columns = ("margin", "rows", "false-fit", "false-oom", "right", "near rows", "near right")
    verdicts = [row for sheet in result.sheets for row in _verdicts(sheet)]
    _table("memory: fits or not", ("source", "rows of", *columns), verdicts)
    peaks = [(sheet.source, *_errors(sheet.peak)) for sheet in result.sheets if sheet.peak is not None]
    _table("peak memory that torch reserves on the first rank", ("source", *METHOD[:6]), peaks)


def _times(sheet: Sheet) -> list[tuple[str, ...]]:
    rows = [(sheet.source, "planner", *_method(sheet.planner))]
    for rival in sheet.baselines:
        if rival.method.time is not None:
            rows.append((sheet.source, rival.name, *_method(rival.method)))
            rows.append((sheet.source, "  scaled in hindsight", *_errors(rival.scaled), "", ""))
    return rows


def _regrets(sheet: Sheet) -> list[tuple[str, ...]]:
    methods = [("planner", sheet.planner), *((rival.name, rival.method) for rival in sheet.baselines)]
    return [(sheet.source, name, *_regret(method.regret)) for name, method in methods if method.regret is not None]


def _verdicts(sheet: Sheet) -> list[tuple[str, ...]]:
    kinds = [("all", sheet.memory)]
    if sheet.memory != sheet.memory_trusted:
        kinds.append(("trusted", sheet.memory_trusted))
    return [(sheet.source, kind, *_confusion(one)) for kind, confusions in kinds for one in confusions]


def print_fit(fit: Fit, path: str) -> None:
    """Each number before and after, and which of them the rows hardly tell."""
    rows = [
        (
            number.name,
            f"{number.prior:.4g}",
            f"{number.spread:.2f}",
            f"{number.fitted:.4g}",
            f"{number.moved:+.2f}",
            f"{number.left:.2f}",
            number.identified,
        )
        for number in fit.numbers
    ]
    _table("", ("number", "prior", "its spread", "fitted", "moved by spreads", "spread left", "identified"), rows)
    for how, words in (("weakly", "weakly identified, near their priors whatever is true"), ("no", "not identified")):
        if names := [number.name for number in fit.numbers if number.identified == how]:
            print(f"{words}: {', '.join(names)}")
    print(
        f"{path}: fitted on {fit.time_rows} step times, {fit.peak_rows} peaks, {fit.verdict_rows} verdicts; "
        f"time spread {fit.calibration.time_spread:.1%}"
    )


def print_folds(column: str, folds: Iterable[Fold]) -> None:
    """The error on each value of a column, fitted without it."""
    rows = []
    for fold in folds:
        memory = _confusion(fold.memory)[2:5] if fold.memory else ("-",) * 3
        peak = "-" if fold.peak is None else _percent(fold.peak.median)
        rows.append((fold.value, f"{fold.fitted_rows}", *_method(fold.method), *memory, peak))
    columns = (column, "fitted on", *METHOD, "false-fit", "false-oom", "right", "peak median")
    _table(f"error on rows of one {column}, fitted on the others", columns, rows)


def _print_facts(sheet: Sheet) -> None:
    print(f"{sheet.source}: {sheet.rows} rows; {', '.join(sheet.software)} on {', '.join(sheet.hardware)}")
    for left in sheet.left_out:
        print(f"  {left.rows} rows left out of {left.of}: {left.why}")


def _method(method: Method) -> tuple[str, ...]:
    return *_errors(method.time), _decimal(method.spearman), _decimal(method.spearman_in_groups)


def _errors(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("0", "-", "-", "-", "-", "-")
    sizes = (errors.median, errors.p90, errors.mean, errors.worst)
    return (f"{errors.rows}", *map(_percent, sizes), f"{100 * errors.bias:+.1f}%")


def _regret(regret: Regret | None) -> tuple[str, ...]:
    if regret is None:
        return ("0",) + ("-",) * (len(REGRET) - 1)
    return (
        f"{regret.settings}",
        _decimal(regret.mean_points, 2),
        _decimal(regret.worst_points, 2),
        _percent(regret.mean_part),
        _decimal(regret.top3_mean_points, 2),
        _percent(regret.top3_mean_part),
        f"{regret.oom_picks}",
        f"{regret.no_picks}",
    )


def _confusion(confusion: Confusion) -> tuple[str, ...]:
    return (
        f"{confusion.margin_gib:g} GiB",
        f"{confusion.rows}",
        f"{confusion.false_fit} ({_percent(confusion.false_fit / confusion.rows)})",
        f"{confusion.false_oom}",
        _percent(confusion.right),
        f"{confusion.near_rows}",
        _percent(confusion.near_right),
    )


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}%"


def _decimal(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table that is not on a terminal is as wide as its content; none without rows."""
    if not rows:
        return
    table = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    console = Console()
    (console if console.is_terminal else Console(width=UNLIMITED)).print(table)
