"""What the tests of the data side share: small corpora, and streams of global batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from torchlayout.config import DataSection
from torchlayout.data.corpus import Corpus
from torchlayout.data.loader import Loader, training_batches
from torchlayout.data.prepare import Prepared, prepare

EOS = 256
SEQUENCE, GLOBAL = 16, 8


def tokens_of(directory: Path) -> list[int]:
    corpus = Corpus.open(directory)
    return corpus.window(0, corpus.token_count).tolist()


def expected(*documents: str | bytes) -> list[int]:
    raw = (d.encode() if isinstance(d, str) else d for d in documents)
    return [token for document in raw for token in (*document, EOS)]


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def json_lines(documents: list[str]) -> bytes:
    return "".join(json.dumps({"n": 1, "text": document}) + "\n" for document in documents).encode()


def run(tmp_path: Path, *names: str, **options: object) -> Prepared:
    return prepare([str(tmp_path / name) for name in names], tmp_path / "out", **({"workers": 1} | options))


def running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def section(**changes: object) -> DataSection:
    values = {"path": "corpus", "sequence_length": SEQUENCE, "workers": 0} | changes
    return DataSection.model_validate(values)


def ranks(corpus: Corpus, world: int, size: int = GLOBAL, **changes: object) -> list[Loader]:
    data = section(**changes)
    return [training_batches(corpus, data, global_batch=size, seed=7, rank=rank, world=world) for rank in range(world)]


def global_batch(loaders: list[Loader]) -> list[np.ndarray]:
    """The next global batch [samples, positions, tokens, labels], the ranks' shares one after the other."""
    batches = [next(loader) for loader in loaders]
    assert len({batch.step for batch in batches}) == 1
    names = ("samples", "positions", "tokens", "labels")
    return [np.concatenate([getattr(batch, name).numpy() for batch in batches]) for name in names]


def stream(loaders: list[Loader], steps: int) -> list[list[np.ndarray]]:
    return [global_batch(loaders) for _ in range(steps)]


def same(left: list[list[np.ndarray]], right: list[list[np.ndarray]]) -> bool:
    assert len(left) == len(right)
    pairs = [pair for both in zip(left, right, strict=True) for pair in zip(*both, strict=True)]
    return all(np.array_equal(one, other) for one, other in pairs)
