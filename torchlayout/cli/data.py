"""`torchlayout data ...`: make a corpus of token files, look at one, check one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torchlayout.data.corpus import Corpus
    from torchlayout.data.prepare import Prepared

app = typer.Typer(help="Prepare, inspect and verify corpora.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A prepared corpus.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command()
def prepare(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the corpus goes.", show_default=False)],
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE...", help="Text, JSON lines (.gz, .zst), Parquet, or folders of them."),
    ] = None,
    tokenizer: Annotated[
        str, typer.Option(metavar="bytes|FILE", help="Bytes (257 ids), or a Hugging Face tokenizer.json.")
    ] = "bytes",
    eos: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The tokenizer's end-of-document token, if it has another name.")
    ] = None,
    text_field: Annotated[
        str, typer.Option(metavar="NAME", help="Field of JSON lines, or column of Parquet, with the text.")
    ] = "text",
    python_library: Annotated[
        bool, typer.Option("--python-library", help="Add the text of this Python's standard library.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes; all cores by default.", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete a corpus of other input first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn text into checksummed token files; run it again after an interruption and it goes on where it was."""
    from torchlayout.cli.progress import ByteProgress
    from torchlayout.data.prepare import prepare

    with ByteProgress(f"preparing {out}") as progress:
        done = prepare(
            sources or (),
            out,
            tokenizer=tokenizer,
            eos=eos,
            text_field=text_field,
            library=python_library,
            workers=workers,
            overwrite=overwrite,
            report=progress.report,
        )
    facts = _facts(done) | {"seconds": progress.seconds, "megabytes_per_second": progress.megabytes_per_second}
    if as_json:
        _print_json(facts)
    else:
        _print_prepared(done, progress.megabytes_per_second)


@app.command()
def inspect(
    directory: Directory,
    start: Annotated[int, typer.Option(min=0, help="First token of the text that is shown.")] = 0,
    length: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens of it.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Show what a corpus holds, and decode some of it."""
    from torchlayout.data.corpus import Corpus
    from torchlayout.errors import InputError

    corpus = Corpus.open(directory)
    if start >= corpus.token_count:
        raise InputError(f"--start {start} is beyond the {corpus.token_count} tokens of {directory}")
    facts = _corpus_facts(corpus) | {"sample_start": start, "sample": _decoded(corpus, start, length)}
    if as_json:
        _print_json(facts)
    else:
        _print_corpus(facts)


@app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Read a corpus whole and check every checksum; exit 1 where one fails."""
    from torchlayout.data.corpus import Corpus, Manifest

    corpus = Corpus(directory, Manifest.read(directory))
    files = dict(corpus.verify())
    faults = [fault for fault in files.values() if fault is not None]
    if as_json:
        _print_json({"directory": str(directory), "files": len(files), "faults": faults})
    else:
        for fault in faults:
            print(fault)
        print(f"{directory}: {len(files) - len(faults)} of {len(files)} files are as they were written")
    if faults:
        raise typer.Exit(1)


def _facts(done: Prepared) -> dict[str, Any]:
    manifest = done.manifest
    return {
        "directory": str(done.directory),
        "tokenizer": manifest.tokenizer,
        "vocabulary": manifest.vocabulary,
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "empty_documents": manifest.empty_documents,
        "invalid_utf8_replaced": manifest.replaced,
        "unreadable_files": done.unreadable,
        "source_bytes": manifest.source_bytes,
        "token_files": len(manifest.shards),
        "token_files_kept": done.kept,
        "sha256": manifest.sha256,
    }


def _corpus_facts(corpus: Corpus) -> dict[str, Any]:
    manifest = corpus.manifest
    return {
        "directory": str(corpus.path),
        "tokenizer": corpus.tokenizer,
        "vocabulary": manifest.vocabulary,
        "eos": manifest.eos,
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "tokens_per_document": manifest.tokens / max(1, manifest.documents),
        "empty_documents": manifest.empty_documents,
        "invalid_utf8_replaced": manifest.replaced,
        "source_bytes": manifest.source_bytes,
        "token_files": len(manifest.shards),
        "sha256": manifest.sha256,
    }


def _decoded(corpus: Corpus, start: int, length: int) -> str:
    """Text of some tokens, with a line of its own where a document ends."""
    import numpy as np

    from torchlayout.data.tokenizer import tokenizer_of

    tokenizer = tokenizer_of(corpus)
    tokens = corpus.window(start, length)
    documents = np.split(tokens, np.flatnonzero(tokens == corpus.eos) + 1)
    texts = [tokenizer.decode(document[document != corpus.eos]) for document in documents]
    return "\n--- end of document ---\n".join(texts)


def _print_prepared(done: Prepared, speed: float) -> None:
    facts = _facts(done)
    files = f"{facts['token_files']} token file{'s' * (facts['token_files'] != 1)}"
    print(
        f"{done.directory}: {facts['tokens']:,} tokens in {facts['documents']:,} documents, "
        f"{facts['vocabulary']:,} ids ({facts['tokenizer']}), {files}"
        + (f" ({done.kept} kept from before)" if done.kept else "")
        + (f", at {speed:.1f} MB/s" if speed else "")
    )
    notes = {
        "invalid UTF-8 sequences were replaced": facts["invalid_utf8_replaced"],
        "empty documents were left out": facts["empty_documents"],
        "unreadable files were left out": facts["unreadable_files"],
    }
    for note, count in notes.items():
        if count:
            print(f"{count:,} {note}")


def _print_corpus(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", str(facts["directory"]))
    for name, value in facts.items():
        if name not in ("directory", "sample", "sample_start"):
            shown = f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
            table.add_row(name.replace("_", " "), shown)
    console = Console()
    (console if console.is_terminal else Console(width=1000)).print(table)
    console.print(f"from token {facts['sample_start']:,}:")
    console.print(facts["sample"], markup=False, highlight=False)


def _print_json(facts: dict[str, Any]) -> None:
    import json

    print(json.dumps(facts, indent=2))
