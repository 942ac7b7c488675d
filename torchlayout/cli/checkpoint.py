"""`torchlayout checkpoint ...`: look at checkpoints, check them, take models out of them and put some in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from torchlayout.checkpoint import Checkpoint

app = typer.Typer(help="List, verify, inspect, export and import checkpoints.", no_args_is_help=True)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
RunOrCheckpoint = Annotated[
    Path,
    typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a run for its newest sound one.", show_default=False),
]
UNLIMITED = 10_000  # columns, where nobody's screen limits them
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command("list")
def list_(run: Run, as_json: AsJson = False) -> None:
    """Show the checkpoints of a run, oldest first, without reading their tensors."""
    from torchlayout.checkpoint.find import checkpoints_at

    rows = [_listed(checkpoint) for checkpoint in checkpoints_at(run)]
    if as_json:
        _print_json({"run": str(run), "checkpoints": rows})
        return
    columns = ("step", "layout", "ranks", "bytes", "path")
    _print_table(columns, [(row["step"], row["layout"], row["world"], row["bytes"], row["path"]) for row in rows])
    for row in rows:
        if row["fault"] is not None:
            print(row["fault"])


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="All of a run, or one.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Read checkpoints whole and check every file's SHA-256; exit 1 where one fails."""
    from torchlayout.checkpoint.find import checked, checkpoints_at
    from torchlayout.cli.progress import ByteProgress

    found = checkpoints_at(path)
    with ByteProgress(f"verifying {path}") as progress:
        results = list(checked(found, progress.report))
    if as_json:
        rows = [{"path": str(checkpoint.path), "faults": faults} for checkpoint, faults in results]
        _print_json({"checkpoints": rows, "sound": not any(faults for _, faults in results)})
    else:
        for checkpoint, faults in results:
            print("\n".join(faults) or f"{checkpoint.path}: all {len(checkpoint.files)} files are as they were written")
    if any(faults for _, faults in results):
        raise typer.Exit(1)


@app.command()
def inspect(path: RunOrCheckpoint, as_json: AsJson = False) -> None:
    """Show what a checkpoint holds: progress, layout, model, tensors, files."""
    from torchlayout.checkpoint.find import is_checkpoint

    facts = _facts(_one(path, whole=not is_checkpoint(path)))
    if as_json:
        _print_json(facts)
    else:
        _print_facts(facts)


@app.command()
def export(
    path: RunOrCheckpoint,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the model, new.", show_default=False)],
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="Format of the weights.")] = "fp32",
    max_shard_gib: Annotated[float, typer.Option(metavar="GIB", help="Largest file of weights.")] = 5.0,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="tokenizer.json to put beside the weights.", show_default=False)
    ] = None,
) -> None:
    """Verify a checkpoint and write its model as a folder that Hugging Face's transformers loads."""
    from torchlayout.errors import InputError

    if not 0 < max_shard_gib <= 2**20:
        raise InputError(f"--max-shard-gib {max_shard_gib:g} must be above 0 and at most {2**20:,}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; name a folder that is new or empty")
    if tokenizer is not None and not tokenizer.is_file():
        raise InputError(
            f"--tokenizer {tokenizer} is no file; name the corpus's tokenizer.json, or leave it out (bytes have none)"
        )
    checkpoint = _one(path, whole=True)

    from torchlayout.checkpoint.huggingface import export_model
    from torchlayout.cli.progress import ByteProgress

    with ByteProgress(f"exporting {checkpoint.path}") as progress:
        files = export_model(
            checkpoint,
            out,
            dtype=dtype,
            shard_bytes=int(max_shard_gib * 2**30),
            tokenizer=tokenizer,
            report=progress.report,
        )
    print(f"{out}: the model of {checkpoint.path} in {dtype}: {', '.join(files)}")


@app.command("import")
def import_(
    source: Annotated[
        Path, typer.Argument(metavar="HF_FOLDER", help="config.json and safetensors.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the checkpoint, new.", show_default=False)],
) -> None:
    """Turn a Hugging Face Llama into a checkpoint of step 0 that a run continues."""
    from torchlayout.checkpoint.huggingface import import_model
    from torchlayout.cli.progress import ByteProgress

    with ByteProgress(f"importing {source}") as progress:
        checkpoint = import_model(source, out, progress.report)
    print(f'{checkpoint.path}: continue it with [model] huggingface = "{source}" and checkpoint.resume = "{out}"')


def _one(path: Path, *, whole: bool) -> Checkpoint:
    """The checkpoint that is meant; `whole`: after verifying it, damaged ones skipped aloud."""
    import sys

    from torchlayout.checkpoint.find import checkpoints_at, sound_checkpoint
    from torchlayout.cli.progress import ByteProgress

    if not whole:
        return checkpoints_at(path)[-1]
    with ByteProgress(f"verifying {path}") as progress:
        checkpoint, skipped = sound_checkpoint(path, progress.report)
    for fault in skipped:
        print(f"skipped: {fault}", file=sys.stderr)
    return checkpoint


def _listed(checkpoint: Checkpoint) -> dict[str, Any]:
    from torchlayout.errors import InputError

    row: dict[str, Any] = {"path": str(checkpoint.path), "step": None, "layout": None, "world": None, "bytes": None}
    try:
        state = checkpoint.index.state
        known = {"step": state["step"], "layout": state["layout"], "world": state["world"], "bytes": checkpoint.bytes}
        return row | known | {"fault": None}
    except InputError as error:
        return row | {"fault": str(error)}


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    from torchlayout.config import ModelConfig
    from torchlayout.model.count import parameters

    index, state = checkpoint.index, checkpoint.index.state
    data = state["data"] or {"samples_consumed": 0}
    length = state["order"]["sequence_length"] if state["order"] else 0
    return {
        "path": str(checkpoint.path),
        "step": state["step"],
        "layout": state["layout"],
        "world": state["world"],
        "parameters": parameters(ModelConfig.model_validate(state["model"])),
        "optimizer_steps": state["optimizer_steps"],
        "samples_consumed": data["samples_consumed"],
        "tokens_consumed": data["samples_consumed"] * length,
        "bytes": checkpoint.bytes,
        "model": state["model"],
        "tensors": [
            {"name": name, "dtype": tensor.dtype, "shape": list(tensor.shape), "chunks": len(tensor.chunks)}
            for name, tensor in sorted(index.tensors.items())
        ],
        "files": [{"name": name, "bytes": facts["bytes"]} for name, facts in sorted(checkpoint.files.items())],
    }


def _print_facts(facts: dict[str, Any]) -> None:
    lists = ("model", "tensors", "files")
    rows = [(name.replace("_", " "), value) for name, value in facts.items() if name not in lists]
    rows += [(f"model {name}", value) for name, value in facts["model"].items() if value is not None]
    _print_table(("", ""), rows)
    _print_table(("file", "bytes"), [tuple(file.values()) for file in facts["files"]])
    tensors = [(one["name"], one["dtype"], str(one["shape"]), one["chunks"]) for one in facts["tensors"]]
    _print_table(("tensor", "type", "shape", "chunks"), tensors)


def _print_table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Numbers with thousands separators; a table that is not on a terminal is as wide as its content."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, show_header=any(columns))
    for row in rows:
        cells = (f"{cell:,}" if type(cell) is int else "-" if cell is None else str(cell) for cell in row)
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    console = Console()
    (console if console.is_terminal else Console(width=UNLIMITED)).print(table)


def _print_json(facts: dict[str, Any]) -> None:
    import json

    print(json.dumps(facts, indent=2))
