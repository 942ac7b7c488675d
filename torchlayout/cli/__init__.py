"""`torchlayout VERB ...`: thin commands that import what they need when they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from torchlayout.cli import checkpoint, compare, config, data, plan, trace
from torchlayout.errors import InputError, about_path

app = typer.Typer(
    help="Llama pretraining under every parallel layout: one TOML file, one loss.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(plan.app, name="plan")
app.command()(compare.compare)
app.command()(compare.report)
app.command()(trace.trace)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 1 a verdict failed, 2 bad input (a sentence a problem), 130 Ctrl-C."""
    sys.exit(_run(None if arguments is None else list(arguments)))


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(args=arguments, prog_name="torchlayout", standalone_mode=False)
        if sys.stdout is not None:  # closed by who started the command
            sys.stdout.flush()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # The reader (head, less) has gone: nobody is left to tell, and the interpreter must not try again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if (sentence := about_path(error)) is None:
            raise
        print(sentence, file=sys.stderr)
        return 2
    except typer.TyperException as error:
        print(error.format_message(), file=sys.stderr)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0
