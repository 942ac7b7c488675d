"""The worker processes of the loader: they end with it, and what they meet reaches the user."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.corpora import SEQUENCE, ranks, running, same, stream
from torchlayout.data.corpus import Corpus
from torchlayout.data.loader import Loader
from torchlayout.errors import InputError


def test_closing_ends_the_workers_and_reading_on_starts_new_ones(corpus: Corpus) -> None:
    expected = stream(ranks(corpus, 1), 4)
    (loader,) = ranks(corpus, 1, workers=2)
    before = set(multiprocessing.active_children())
    got = stream([loader], 2)
    assert len(set(multiprocessing.active_children()) - before) == 2
    loader.close()
    assert set(multiprocessing.active_children()) <= before
    loader.close()
    got += stream([loader], 2)
    assert same(got, expected)
    del loader
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


LEFT_OPEN = """
import multiprocessing, sys
from torchlayout.config import DataSection
from torchlayout.data.corpus import Corpus
from torchlayout.data.loader import training_batches
data = DataSection(path="corpus", sequence_length=16, workers=2)
loader = training_batches(Corpus.open(sys.argv[1]), data, global_batch=8, seed=7, rank=0, world=1)
next(loader)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
if sys.argv[2] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["return", "raise"])
def test_a_process_that_ends_without_closing_leaves_no_worker_behind(corpus: Corpus, how: str) -> None:
    command = [sys.executable, "-c", LEFT_OPEN, str(corpus.path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == (3 if how == "raise" else 0)
    assert done.stderr == ""
    workers = done.stdout.split()
    assert len(workers) == 2
    assert not [worker for worker in workers if running(worker)]


def test_a_corpus_pickles_without_its_tokens(corpus: Corpus) -> None:
    corpus.sample(0, SEQUENCE)
    raw = pickle.dumps(corpus)
    assert len(raw) < 2000
    assert np.array_equal(pickle.loads(raw).sample(3, SEQUENCE), corpus.sample(3, SEQUENCE))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_token_file_that_vanishes_is_a_sentence_in_every_process(
    corpus: Corpus, tmp_path: Path, loaders: list[Loader], workers: int
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in corpus.path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    opened = Corpus.open(copy)
    (copy / "shard-00000.tokens").unlink()
    loaders += ranks(opened, 1, workers=workers)
    with pytest.raises(InputError, match=r"^token file .*shard-00000.tokens cannot be read: No such file.*$"):
        next(loaders[0])
