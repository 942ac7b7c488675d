"""`torchlayout plan accuracy FILES` and `torchlayout plan fit FILES`: the planner beside measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torchlayout.plan.calibration import Calibration
    from torchlayout.plan.measured.runs import Run

Files = Annotated[
    list[Path], typer.Argument(metavar="FILES...", help="CSV files of measured runs.", show_default=False)
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=VALUE,VALUE",
        help="Rows with one of these values; * stands for anything; may be repeated, and all have to hold.",
        show_default=False,
    ),
]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option(
        metavar="'COLUMN=VALUE COLUMN=VALUE'",
        help="No rows to which all of this applies; may be repeated.",
        show_default=False,
    ),
]
HardwareName = Annotated[
    str | None,
    typer.Option("--hardware", metavar="NAME|FILE", help="Device of all rows.", show_default="the gpu column"),
]
SoftwareName = Annotated[
    str | None,
    typer.Option("--software", metavar="NAME|FILE", help="Stack of all rows.", show_default="by the source column"),
]
MarginGib = Annotated[float, typer.Option(metavar="GIB", help="Memory that a pick has to leave free.", min=0, max=1024)]


def accuracy(
    files: Files,
    hardware: HardwareName = None,
    software: SoftwareName = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Fitted numbers for all rows; priors: none fitted.",
            show_default="shipped for stack and device",
        ),
    ] = None,
    only: Only = None,
    leave_out: LeaveOut = None,
    margin_gib: MarginGib = 4.0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Plot predicted against measured step times.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/plan-accuracy.schema.json).")] = False,
) -> None:
    """Compare the planner with measured runs: step time, ranking, memory, picks; and what needs no planner."""
    from torchlayout.plan.measured.accuracy import Accuracy, judge

    if plot is not None:
        from torchlayout.plan.measured.figure import check_figure, write_figure

        check_figure(plot)
    runs = _runs(files, hardware, software, only, leave_out)
    numbers = _calibration(calibration)
    result = Accuracy(
        files=tuple(map(str, files)),
        only=tuple(only or ()),
        leave_out=tuple(leave_out or ()),
        margin_gib=margin_gib,
        sheets=judge(runs, numbers, margin_gib),
    )
    if plot is not None:
        write_figure(runs, numbers, plot)
    if as_json:
        print(result.model_dump_json(indent=2))
        return
    from torchlayout.cli.plan_accuracy_tables import print_accuracy

    print_accuracy(result)
    if plot is not None:
        print(f"plot: {plot}")


def fit(
    files: Files,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Calibration to write.", show_default="none is written")
    ] = None,
    only: Only = None,
    leave_out: LeaveOut = None,
    free: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Numbers to fit: all, time, memory, a table such as links, or their names."),
    ] = "all",
    name: Annotated[str | None, typer.Option(help="Name of the calibration.", show_default="that of the file")] = None,
    hardware: HardwareName = None,
    software: SoftwareName = None,
    calibration: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Where to start, and what numbers stay at that are not fitted.")
    ] = "priors",
    cross: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Leave out one value of a column in turn: source, model, gpus...", show_default=False
        ),
    ] = None,
) -> None:
    """Fit the numbers of a calibration to measured runs by robust least squares with priors."""
    from torchlayout.cli.plan_accuracy_tables import print_fit, print_folds
    from torchlayout.errors import InputError
    from torchlayout.plan.measured import fit as fitting

    if out is not None and out.suffix != ".toml":
        raise InputError(f"--out {out} is no name of a calibration; legal: FILE.toml")
    if out is None and cross is None:
        raise InputError("plan fit has nothing to do: give --out FILE.toml, --cross COLUMN or both")
    numbers, base = fitting.free_numbers(free), _calibration(calibration)
    rows = fitting.usable(_runs(files, hardware, software, only, leave_out))
    if cross is not None:
        from torchlayout.plan.measured.crossed import crossed

        print_folds(cross, crossed(rows, cross, numbers, base))
    if out is not None:
        found = fitting.fit(rows, numbers, base)
        words = ["plan", "fit", *map(str, files), "--out", str(out)]
        for option, given in (("--only", only), ("--leave-out", leave_out)):
            words += [word for rule in given or () for word in (option, rule)]
        defaults = (("free", free, "all"), ("hardware", hardware, None), ("software", software, None))
        for option, value, default in (*defaults, ("calibration", calibration, "priors")):
            words += [f"--{option}", str(value)] if value != default else []
        print_fit(found, fitting.write(found, out, name or out.stem, [file.name for file in files], words))


def _runs(
    files: list[Path], hardware: str | None, software: str | None, only: list[str] | None, leave_out: list[str] | None
) -> list[Run]:
    from torchlayout.hardware import Hardware
    from torchlayout.plan.measured.choose import choose
    from torchlayout.plan.measured.runs import read_runs
    from torchlayout.plan.software import Software

    device = None if hardware is None else Hardware.load(hardware)
    stack = None if software is None else Software.load(software)
    return choose([run for file in files for run in read_runs(file, device, stack)], only or (), leave_out or ())


def _calibration(name: str | None) -> Calibration | None:
    from torchlayout.plan.calibration import Calibration

    return None if name is None else Calibration.load(name)
