"""What several test files share."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import settings

from torchlayout.data.prepare import prepare

# A shared machine stops for longer than a drawn case may take.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte corpus of a few thousand tokens in short documents."""
    folder = tmp_path_factory.mktemp("corpus")
    source = folder / "text.jsonl"
    rng = random.Random(0)
    words = ["layout", "rank", "mesh", "shard", "stage", "bubble", "\u00e9t\u00e9"]
    documents = [" ".join(rng.choices(words, k=rng.randint(2, 12))) for _ in range(300)]
    source.write_text("".join(f'{{"text": "{document}"}}\n' for document in documents), encoding="utf-8")
    prepare([str(source)], folder / "tokens")
    return folder / "tokens"
