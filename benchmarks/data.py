"""How fast the data side is: sample order, text to token files, batches.

python benchmarks/data.py                      # about a minute on two cores
python benchmarks/data.py --megabytes 256 --json
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from torchlayout.data.order import Order
from torchlayout.data.pool import cores
from torchlayout.data.prepare import prepare

Row = tuple[str, str, float, str]  # (what, how, value, unit)


def order_rows() -> Iterator[Row]:
    """CPU time of a sample number."""
    for samples in (10**6, 10**13):
        order = Order(samples, seed=1)
        for batch in (32, 512, 4096):
            positions = np.random.default_rng(0).integers(0, samples, batch)
            rounds = max(1, 200_000 // batch)
            started = time.process_time()
            for _ in range(rounds):
                order.at(positions)
            seconds = (time.process_time() - started) / rounds / batch
            yield f"order of 10^{len(str(samples)) - 1} samples", f"{batch} at once", seconds * 1e6, "us CPU a sample"


def write_sources(folder: Path, megabytes: int) -> dict[str, Path]:
    """The same documents as text, JSON lines, compressed JSON lines and Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(5000)]
    documents: list[str] = []
    size = 0
    while size < megabytes * 10**6:
        documents.append(" ".join(rng.choices(words, k=rng.randint(50, 800))))
        size += len(documents[-1])
    lines = "".join(json.dumps({"text": document}) + "\n" for document in documents).encode()
    paths = {name: folder / f"source.{name}" for name in ("txt", "jsonl", "jsonl.gz", "jsonl.zst", "parquet")}
    paths["txt"].write_text("\n".join(documents))
    paths["jsonl"].write_bytes(lines)
    paths["jsonl.gz"].write_bytes(gzip.compress(lines, compresslevel=1))
    paths["jsonl.zst"].write_bytes(zstandard.compress(lines))
    pq.write_table(pa.table({"text": documents}), paths["parquet"], row_group_size=1000)
    return paths


def write_tokenizer(path: Path, text: str) -> None:
    """A byte-level BPE tokenizer of 8,000 ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(path))


def prepare_rows(folder: Path, megabytes: int) -> Iterator[Row]:
    """Text turned into tokens: megabytes of text a second, whatever it was compressed to."""
    paths = write_sources(folder, megabytes)
    write_tokenizer(folder / "tokenizer.json", paths["txt"].read_text()[:2_000_000])
    text_bytes = paths["txt"].stat().st_size
    runs = [(kind, "bytes", workers) for kind in paths for workers in (1, cores())]
    runs += [("jsonl", "tokenizer.json", cores())]
    for kind, tokenizer, workers in runs:
        out = folder / f"{kind}-{tokenizer}-{workers}"
        name = tokenizer if tokenizer == "bytes" else str(folder / tokenizer)
        started = time.perf_counter()
        prepare([str(paths[kind])], out, tokenizer=name, workers=workers)
        speed = text_bytes / 1e6 / (time.perf_counter() - started)
        yield f"prepare {kind}", f"{tokenizer}, {workers} process{'es' * (workers > 1)}", speed, "MB of text/s"
    started = time.perf_counter()
    done = prepare([], folder / "library", library=True)
    speed = done.manifest.source_bytes / 1e6 / (time.perf_counter() - started)
    yield "prepare --python-library", f"bytes, {cores()} processes", speed, "MB of text/s"


def loader_rows(corpus: Path) -> Iterator[Row]:
    """Batches of one rank, with nothing else going on."""
    from torchlayout.config import DataSection
    from torchlayout.data.corpus import Corpus
    from torchlayout.data.loader import training_batches

    for workers in (0, 2):
        data = DataSection(path=str(corpus), sequence_length=2048, workers=workers)
        loader = training_batches(Corpus.open(corpus), data, global_batch=32, seed=1, rank=0, world=1)
        next(loader)
        started, steps = time.perf_counter(), 100
        for _ in range(steps):
            next(loader)
        speed = steps * 32 * 2048 / 1e6 / (time.perf_counter() - started)
        loader.close()
        yield "loader, 32 x 2048", f"{workers} workers", speed, "million tokens/s"


def main() -> None:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=32, help="text in each source")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [*order_rows(), *prepare_rows(Path(folder), options.megabytes), *loader_rows(Path(folder, "library"))]
    if options.json:
        print(json.dumps([dict(zip(("what", "how", "value", "unit"), row, strict=True)) for row in rows], indent=1))
        return
    table = Table("what", "how", "value", "unit", title=f"data, {cores()} cores")
    for what, how, value, unit in rows:
        table.add_row(what, how, f"{value:,.2f}", unit)
    Console().print(table)


if __name__ == "__main__":
    main()
