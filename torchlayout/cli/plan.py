"""`torchlayout plan CONFIG --gpus N`: the best layouts before a GPU is rented; `plan accuracy` and `plan fit`."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from torchlayout.cli import plan_accuracy
from torchlayout.errors import InputError
from torchlayout.layout.words import nearest
from torchlayout.plan.search.conventions import EPILOG

LAYOUTS = "layouts"
"""The command that is meant where no other is named."""


class PlanGroup(TyperGroup):
    """`plan CONFIG ...` is `plan layouts CONFIG ...`: CONFIG is no command, and needs none before it."""

    default = LAYOUTS

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the hidden command in front where no command is named."""
        named = bool(args) and args[0] in self.commands
        others = [name for name in self.commands if name != self.default]
        if args and not named and get_close_matches(args[0], others) and not Path(args[0]).exists():
            raise InputError(f"{args[0]} is neither a configuration nor a command; {nearest(args[0], others)}")
        return super().parse_args(ctx, args if named else [self.default, *(args or ["--help"])])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Says `torchlayout plan CONFIG` in the usage of the hidden command."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == self.default else name, command, rest


app = typer.Typer(
    cls=PlanGroup,
    help="List the layouts that fit, fastest first; `plan accuracy` and `plan fit` hold the planner against "
    "measured runs.",
)


@app.command(
    LAYOUTS,
    hidden=True,
    epilog=f"{EPILOG} Further commands: torchlayout plan accuracy, torchlayout plan fit.",
)
def layouts(
    file: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of a run.", show_default=False)],
    gpus: Annotated[int, typer.Option(min=1, max=16384, help="Number of devices.", show_default=False)],
    hardware: Annotated[
        str | None, typer.Option(help="Device, or a TOML file of one; left out: hardware.name of CONFIG.")
    ] = None,
    software: Annotated[str, typer.Option(help="Profile of the stack, or a TOML file of one.")] = "torchlayout",
    calibration: Annotated[
        str | None,
        typer.Option(help="Fitted numbers, a TOML file of them, or priors; left out: those of software and device."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many layouts are listed.")] = 10,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="What a field may be: tensor<=8, micro_batch=2,4, recompute=none; lifts the field's convention; "
            "may be repeated.",
        ),
    ] = None,
    margin_gib: Annotated[float, typer.Option(min=0, max=1024, help="Memory that stays free, GiB.")] = 4.0,
    explain: Annotated[str | None, typer.Option(metavar="LABEL", help="Say everything about one layout.")] = None,
    scaling: Annotated[bool, typer.Option("--scaling", help="The best layout on 8 to N devices.")] = False,
    what_if: Annotated[bool, typer.Option("--what-if", help="Say what would change the answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/plan.schema.json).")] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write CONFIG with the best layout, or that of --explain.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of CONFIG; may be repeated.")
    ] = None,
) -> int:
    """List the layouts of N devices that fit, fastest first, with memory and time; exit 1 where nothing fits."""
    from rich.console import Console

    from torchlayout.config import Config
    from torchlayout.layout import Layout
    from torchlayout.plan.search import tell
    from torchlayout.plan.search.answer import answer
    from torchlayout.plan.search.ask import ask
    from torchlayout.plan.search.change import changes
    from torchlayout.plan.search.change import scaling as scales
    from torchlayout.plan.search.explain import explain as explain_layout
    from torchlayout.plan.search.write import check_target, write_config

    config = Config.load(file, assignments or ())
    question = ask(config, gpus, hardware, software, calibration, margin_gib, fix or ())
    named = None if explain is None else Layout.parse(explain, **question.kernels)
    if write is not None:
        check_target(write, file, question, named)
    more: dict[str, Any] = {}
    with Console(stderr=True).status("searching"):
        started = time.process_time()
        found = answer(question, at_least=top)
        plan = tell.plan(found, top, time.process_time() - started)
        if named is not None:
            more["explained"] = tell.explained(explain_layout(question, named, found.best), margin_gib)
        if what_if:
            more["what_if"] = tell.what_if(changes(found))
        if scaling:
            more["scaling"] = tell.scaled(question, scales(question))
    plan = replace(plan, **more)
    layout = named or (found.best.layout if found.best else None)
    if write is not None and layout is not None:
        # Before anything is printed: a reader may leave early.
        write_config(config, layout, hardware or config.hardware.name, write)
    if as_json:
        print(plan.json())
    else:
        from torchlayout.cli.plan_table import print_plan

        print_plan(plan)
    if write is not None and layout is not None:
        print(f"wrote {write} with {layout}", file=sys.stderr if as_json else sys.stdout)
    return 0 if found.choices else 1


app.command()(plan_accuracy.accuracy)
app.command()(plan_accuracy.fit)
