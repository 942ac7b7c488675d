"""Train a Llama model in a layout: under torchrun, or in one process without it.

torchrun --nproc-per-node 8 -m torchlayout.train configs/quickstart.toml --layout pp2-fsdp2-tp2+sp
python -m torchlayout.train configs/llama_debug.toml --set train.steps=50
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from torchlayout.config import Config
from torchlayout.errors import InputError, about_path
from torchlayout.train.leave import leave

GRACE_SECONDS = 10.0
"""How long a rank above 0 that failed stays, so that torchrun doesn't end rank 0 while it still says why."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


# \b keeps the lines of a paragraph as they are.
@app.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
def train(
    config: Annotated[Path, typer.Argument(help="The TOML file of the run.", show_default=False)],
    layout: Annotated[str | None, typer.Option(help="A layout label in place of [layout].", show_default=False)] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override any value: --set train.steps=50.", show_default=False
        ),
    ] = None,
) -> int:
    """Check all that can be known without torch, then train; the exit status."""
    from torchlayout.checkpoint.find import resume_problems
    from torchlayout.data.check import corpus_problems

    resolved = Config.load(config, override or [], layout)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = resolved.layout_for(world)
    problems = resolved.check(world) + corpus_problems(resolved.data, resolved.model)
    problems += resume_problems(resolved)
    if problems:
        raise InputError(*problems)

    from torchlayout.train.run import run

    return run(resolved, chosen, int(os.environ.get("RANK", "0")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 done, 1 stopped or broken, 2 bad input, 130 Ctrl-C."""
    rank = int(os.environ.get("RANK", "0"))
    status, message = _outcome(None if arguments is None else list(arguments))
    if status == 2 and rank != 0:
        # Rank 0 says the same, and torchrun ends this rank then. Where it is still here, it alone has the problem.
        time.sleep(GRACE_SECONDS)
        message = f"rank {rank}: {message}"
    if message:
        print(message, file=sys.stderr, flush=True)
    if status == 1 and rank != 0:
        time.sleep(GRACE_SECONDS)
    return status


def _outcome(arguments: list[str] | None) -> tuple[int, str]:
    try:
        return app(args=arguments, prog_name="python -m torchlayout.train", standalone_mode=False) or 0, ""
    except InputError as error:
        return 2, str(error)
    except typer.TyperException as error:
        return error.exit_code, error.format_message()
    except (typer.Abort, KeyboardInterrupt):
        return 130, ""
    except Exception as error:
        sentence = about_path(error) if isinstance(error, OSError) else None
        return (1, traceback.format_exc()) if sentence is None else (2, sentence)


if __name__ == "__main__":
    leave(main())
