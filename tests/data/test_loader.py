"""The loader: one stream of samples for every number of ranks and workers, across epochs and resumes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.corpora import GLOBAL, SEQUENCE, ranks, same, section, stream
from torchlayout.data.corpus import Corpus
from torchlayout.data.digest import batch_digest
from torchlayout.data.loader import Batch, Loader, evaluation_batches
from torchlayout.errors import InputError


def three_epochs(corpus: Corpus) -> int:
    return -(-3 * corpus.samples(SEQUENCE) // GLOBAL)


def test_one_and_four_ranks_consume_the_same_stream_over_three_epochs(corpus: Corpus) -> None:
    steps = three_epochs(corpus)
    one, four = stream(ranks(corpus, 1), steps), stream(ranks(corpus, 4), steps)
    assert same(one, four)
    assert [batch_digest(*batch) for batch in one] == [batch_digest(*batch) for batch in four]


def test_each_epoch_consumes_each_sample_once_in_another_order(corpus: Corpus) -> None:
    samples = corpus.samples(SEQUENCE)
    seen = np.concatenate([batch[0] for batch in stream(ranks(corpus, 2), three_epochs(corpus))])
    epochs = seen[: 3 * samples].reshape(3, samples)
    assert (np.sort(epochs) == np.arange(samples)).all()
    assert len({epoch.tobytes() for epoch in epochs}) == 3


def test_a_batch_holds_the_windows_of_the_token_files(corpus: Corpus) -> None:
    tokens = np.concatenate([np.fromfile(corpus.path / s.file, "<u2", offset=256) for s in corpus.manifest.shards])
    (loader,) = ranks(corpus, 1)
    batch = next(loader)
    assert batch.step == 1
    for row, sample in enumerate(batch.samples.tolist()):
        window = tokens[sample * SEQUENCE : (sample + 1) * SEQUENCE + 1].astype(np.int64)
        assert batch.tokens[row].tolist() == window[:-1].tolist()
        assert batch.labels[row].tolist() == window[1:].tolist()
        assert batch.positions[row].tolist() == list(range(SEQUENCE))
    assert batch.documents is None
    assert {part.dtype for part in (batch.samples, batch.tokens, batch.labels, batch.positions)} == {torch.int64}


def test_workers_change_neither_the_stream_nor_the_global_generator(corpus: Corpus, loaders: list[Loader]) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    loaders += ranks(corpus, 2, workers=2)
    assert same(stream(loaders, 25), stream(ranks(corpus, 1), 25))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 8)])
def test_a_restored_state_continues_exactly_at_another_world(
    corpus: Corpus, loaders: list[Loader], workers: int, before: int, after: int
) -> None:
    expected = stream(ranks(corpus, 1), 30)
    first = ranks(corpus, before, workers=workers)
    loaders += first
    stream(first, 10)
    state = first[0].state_dict()
    assert state == {"seed": 7, "samples_consumed": 10 * GLOBAL}
    second = ranks(corpus, after, workers=2 - workers)
    loaders += second
    for loader in second:
        loader.load_state_dict(state)
    assert same(stream(second, 20), expected[10:])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_counts_what_was_consumed_not_what_was_read_ahead(
    corpus: Corpus, loaders: list[Loader], workers: int
) -> None:
    loaders += ranks(corpus, 1, workers=workers)
    (loader,) = loaders
    assert loader.state_dict()["samples_consumed"] == 0
    for step in range(1, 5):
        assert next(loader).step == step
        assert loader.state_dict()["samples_consumed"] == step * GLOBAL


def test_saving_and_loading_twice_in_a_row_across_an_epoch_continues_each_time(
    corpus: Corpus, loaders: list[Loader]
) -> None:
    epoch = corpus.samples(SEQUENCE) // GLOBAL
    expected = stream(ranks(corpus, 1), 2 * epoch + 6)
    pieces = [epoch - 1, 3, epoch]  # the second piece crosses the end of the first epoch
    done = 0
    state = None
    for world, steps in zip((1, 4, 2), pieces, strict=True):
        current = ranks(corpus, world, workers=1)
        loaders += current
        for loader in current:
            if state is not None:
                loader.load_state_dict(state)
        assert same(stream(current, steps), expected[done : done + steps])
        done += steps
        state = current[-1].state_dict()
    assert state == {"seed": 7, "samples_consumed": done * GLOBAL}


def test_loading_a_state_into_a_running_loader_drops_what_it_read_ahead(corpus: Corpus, loaders: list[Loader]) -> None:
    expected = stream(ranks(corpus, 1), 6)
    loaders += ranks(corpus, 1, workers=2)
    state = loaders[0].state_dict()
    stream(loaders, 5)
    loaders[0].load_state_dict(state)
    assert same(stream(loaders, 6), expected)


def test_a_global_batch_larger_than_the_corpus_wraps_through_epochs(corpus: Corpus) -> None:
    samples = corpus.samples(SEQUENCE)
    size = 2 * samples + samples // 2
    size += size % 2
    (batch,) = stream(ranks(corpus, 2, size=size), 1)
    assert len(batch[0]) == size
    assert (np.bincount(batch[0], minlength=samples) >= 2).all()
    small = np.concatenate([b[0] for b in stream(ranks(corpus, 1, size=2), size // 2)])
    assert np.array_equal(batch[0], small)


def test_training_never_sees_a_sample_that_is_held_out(corpus: Corpus) -> None:
    samples = corpus.samples(SEQUENCE)
    changes = {"evaluation_fraction": 0.1}
    trained = {s for batch in stream(ranks(corpus, 1, **changes), 40) for s in batch[0].tolist()}
    held_out = {s for batch in evaluated(corpus, world=1, **changes) for s in batch.samples.tolist() if s >= 0}
    assert held_out == set(range(samples - round(samples * 0.1), samples))
    assert trained == set(range(samples)) - held_out


def evaluated(corpus: Corpus, world: int, rank: int = 0, batches: int = 99, **changes: object) -> list[Batch]:
    data = section(**changes)
    made = evaluation_batches(corpus, data, global_batch=4, batches=batches, rank=rank, world=world)
    return list(made)


def test_evaluation_is_in_order_and_filled_up_with_ignored_labels(corpus: Corpus) -> None:
    changes = {"evaluation_fraction": 0.1}
    one = evaluated(corpus, world=1, **changes)
    two = [evaluated(corpus, world=2, rank=rank, **changes) for rank in range(2)]
    held_out = round(corpus.samples(SEQUENCE) * 0.1)
    assert held_out % 4
    assert len(one) == len(two[0]) == len(two[1]) == -(-held_out // 4)
    for whole, *parts in zip(one, *two, strict=True):
        assert torch.equal(whole.tokens, torch.cat([part.tokens for part in parts]))
        assert torch.equal(whole.labels, torch.cat([part.labels for part in parts]))
    last = one[-1]
    assert (last.samples[held_out % 4 :] == -1).all()
    assert (last.labels[held_out % 4 :] == -100).all()
    assert (last.labels[: held_out % 4] != -100).all()
    assert last.tokens.max() < corpus.vocabulary
    assert len(evaluated(corpus, world=1, batches=1, **changes)) == 1


def test_within_documents_counts_ends_and_ignores_labels_across_them(corpus: Corpus) -> None:
    plain, inside = next(ranks(corpus, 1)[0]), next(ranks(corpus, 1, within_documents=True)[0])
    assert torch.equal(plain.tokens, inside.tokens)
    assert inside.documents is not None
    ended = 0
    for tokens, labels, plain_labels, documents in zip(
        inside.tokens.tolist(), inside.labels.tolist(), plain.labels.tolist(), inside.documents.tolist(), strict=True
    ):
        for at, token in enumerate(tokens):
            assert documents[at] == tokens[:at].count(corpus.eos)
            assert labels[at] == (-100 if token == corpus.eos else plain_labels[at])
            ended += token == corpus.eos
    assert ended > 0


def test_states_of_another_order_are_refused(corpus: Corpus) -> None:
    (loader,) = ranks(corpus, 1)
    with pytest.raises(InputError, match=r"run\.seed = 7 cannot continue an order begun with seed 8"):
        loader.load_state_dict({"seed": 8, "samples_consumed": 16})
    with pytest.raises(InputError, match=r"batch\.global_size = 8 cannot continue after 12 samples"):
        loader.load_state_dict({"seed": 7, "samples_consumed": 12})


@pytest.mark.parametrize(
    ("changes", "size", "world", "sentence"),
    [
        ({"sequence_length": 100_000}, 8, 1, r"too few for one sample of data\.sequence_length = 100000"),
        ({}, 9, 4, r"batch\.global_size = 9 is not divisible by the 4 data ranks; .* 8 and 12"),
        ({"sequence_length": 1000, "evaluation_fraction": 0.5}, 8, 1, r"leaves nothing to train on"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(
    corpus: Corpus, changes: dict[str, object], size: int, world: int, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        ranks(corpus, world, size=size, **changes)


def test_evaluation_without_a_held_out_part_is_refused(corpus: Corpus) -> None:
    with pytest.raises(InputError, match=r"data\.evaluation_fraction = 0\.0"):
        evaluated(corpus, world=1)
