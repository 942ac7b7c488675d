"""Train a model in a layout.

torchrun --nproc-per-node 8 -m torchlayout.train configs/quickstart.toml --layout pp2-fsdp2-tp2+sp
python -m torchlayout.train configs/llama_debug.toml --set train.steps=50
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from torchlayout.config import Config
from torchlayout.errors import InputError


def train(
    config: Annotated[Path, typer.Argument(help="The TOML file of the run.", show_default=False)],
    layout: Annotated[str | None, typer.Option(help="A layout label in place of [layout].", show_default=False)] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override any value: --set train.steps=50.", show_default=False
        ),
    ] = None,
) -> None:
    """Train a Llama model under torchrun, or in one process without it."""
    rank = int(os.environ.get("RANK", "0"))
    try:
        resolved = Config.load(config, override or [], layout)
        world = int(os.environ.get("WORLD_SIZE", "1"))
        chosen = resolved.layout_for(world)
        from torchlayout.train.supported import unsupported

        problems = resolved.check(world) + unsupported(chosen)
        if problems:
            raise InputError(*problems)
        from torchlayout.train.run import run

        status = run(resolved, chosen, rank)
    except InputError as error:
        if rank == 0:
            print(error, file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    raise SystemExit(status)


if __name__ == "__main__":
    typer.run(train)
