"""What several tests of the data side share."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from harness.corpora import SEQUENCE
from torchlayout.data.corpus import Corpus
from torchlayout.data.loader import Loader
from torchlayout.data.prepare import prepare


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """90 samples of 16 tokens, in documents of 3 to 40 bytes."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcdefgh", k=rng.randint(3, 40))) for _ in range(200)]
    lines, size = [], 0
    for text in texts:
        if size + len(text) + 1 > 90 * SEQUENCE + 3:
            break
        size += len(text) + 1
        lines.append(f'{{"text": "{text}"}}\n')
    (folder / "source.jsonl").write_text("".join(lines))
    prepare([str(folder / "source.jsonl")], folder / "corpus", workers=1)
    return Corpus.open(folder / "corpus")


@pytest.fixture
def loaders(corpus: Corpus) -> Iterator[list[Loader]]:
    """Loaders put here are closed after the test."""
    made: list[Loader] = []
    yield made
    for loader in made:
        loader.close()
