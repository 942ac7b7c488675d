"""`torchlayout config ...`: the default file, its schema, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchlayout.errors import InputError

app = typer.Typer(help="Show, check and describe configuration files.", no_args_is_help=True)


@app.command()
def show() -> None:
    """Print a configuration file with every key, its meaning and its default."""
    from torchlayout.config.show import commented_default

    print(commented_default())


@app.command()
def schema() -> None:
    """Print a JSON Schema of configuration files, for editors."""
    import json

    from torchlayout.config import show

    print(json.dumps(show.schema(), indent=2))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="TOML file.", show_default=False)],
    layout: Annotated[str | None, typer.Option(help="Label that replaces [layout].")] = None,
    world: Annotated[int | None, typer.Option(min=1, help="Ranks that will be started.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value; may be repeated.")
    ] = None,
) -> None:
    """Say everything that is wrong with a configuration, a sentence each; exit 2 where anything is."""
    from torchlayout.checkpoint.find import resume_problems
    from torchlayout.config import Config
    from torchlayout.data.check import corpus_problems
    from torchlayout.model.count import parameters

    config = Config.load(file, assignments or (), layout)
    problems = config.check(world) + corpus_problems(config.data, config.model) + resume_problems(config)
    if problems:
        raise InputError(*problems)
    ranks = world or config.layout.layout(1).world
    print(
        f"{file} is fine: {parameters(config.model) / 1e6:,.1f} million parameters, "
        f"layout {config.layout_for(ranks)} on {ranks} rank{'s' * (ranks > 1)}"
    )
