"""From the global order to the batches of one data rank, resumable at any number of ranks."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from torchlayout.data.corpus import Corpus
from torchlayout.data.digest import batch_digest
from torchlayout.data.order import Order
from torchlayout.errors import InputError

if TYPE_CHECKING:
    from torchlayout.config import DataSection

__all__ = ["Batch", "Loader", "batch_digest", "evaluation_batches", "training_batches"]

IGNORED = -100  # the label that the loss leaves out, as torch's cross entropy does


@dataclass(frozen=True)
class Batch:
    """What one data rank sees of a global batch; all int64, sequences still whole.

    `documents` counts the ends of documents before each token, None unless attention stays inside documents.
    """

    step: int  # from 1
    samples: torch.Tensor  # [local] number of each sample in the corpus; -1 fills up an evaluation batch
    tokens: torch.Tensor  # [local, sequence]
    labels: torch.Tensor  # [local, sequence], -100 where the loss leaves a token out
    documents: torch.Tensor | None  # [local, sequence]
    positions: torch.Tensor  # [local, sequence] 0 ... sequence - 1


class Loader:
    """The endless batches of one data rank, and how far they were handed out.

    What workers read ahead is not consumed: the state counts only batches that `next` returned. It names no rank and
    no worker, so any number of either continues it exactly (which the state of StatefulDataLoader would not).
    """

    def __init__(self, batches: _TrainingBatches, workers: int) -> None:
        self._batches, self._workers = batches, workers
        self._consumed = 0
        self._iterator: Iterator[Batch | InputError] | None = None

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = self._started()
        batch = next(self._iterator)
        if isinstance(batch, InputError):
            raise batch
        self._consumed += self._batches.global_batch
        return batch

    def state_dict(self) -> dict[str, int]:
        """{"seed", "samples_consumed"}: samples of the global order handed out, on all ranks together."""
        return {"seed": self._batches.order.seed, "samples_consumed": self._consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after what `state` says was consumed; raises InputError when this order cannot continue it."""
        seed, consumed, size = state["seed"], state["samples_consumed"], self._batches.global_batch
        if seed != self._batches.order.seed:
            raise InputError(
                f"run.seed = {self._batches.order.seed} cannot continue an order begun with seed {seed}; "
                f"set run.seed = {seed}, or start a new run"
            )
        if consumed % size:
            raise InputError(
                f"batch.global_size = {size} cannot continue after {consumed} samples, which are no whole number of "
                "steps of that size; resume with the size the run was begun with"
            )
        self.close()
        self._consumed = consumed

    def close(self) -> None:
        """End the worker processes; a later `next` starts new ones where this stopped."""
        iterator, self._iterator = self._iterator, None
        # torch ends its workers when the iterator is collected; a reference kept by a traceback would keep them.
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()

    def _started(self) -> Iterator[Batch | InputError]:
        # A generator of its own: otherwise starting workers would draw from torch's global generator, and the
        # number of workers would change everything drawn later.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # torchdata 0.11 under torch 2.13
            loader: StatefulDataLoader[Batch | InputError] = StatefulDataLoader(
                self._batches,
                batch_size=None,
                sampler=_Steps(self._consumed // self._batches.global_batch + 1),
                num_workers=self._workers,
                collate_fn=_unchanged,
                worker_init_fn=_leave_stopping_to_the_rank,
                generator=torch.Generator(),
            )
        return iter(loader)


def training_batches(
    corpus: Corpus, data: DataSection, *, global_batch: int, seed: int, rank: int, world: int
) -> Loader:
    """The batches of data rank `rank` of `world`: step k is positions [(k-1) x global_batch, k x global_batch).

    Raises InputError when the corpus is too small for a sample, or the ranks do not divide the batch.
    """
    samples = _samples(corpus, data) - _held_out(corpus, data)
    order = Order(samples, seed, data.shuffle)
    share = _share(global_batch, rank, world)
    cutter = _Cutter(corpus, data.sequence_length, data.within_documents)
    return Loader(_TrainingBatches(order, cutter, global_batch, share), data.workers)


def evaluation_batches(
    corpus: Corpus, data: DataSection, *, global_batch: int, batches: int, rank: int, world: int
) -> Iterator[Batch]:
    """At most `batches` global batches of the held-out samples in their order, the share of one data rank.

    Where the last batch lacks samples, their labels are all ignored, so that every rank has as many batches of the
    same shape. Raises InputError when nothing is held out.
    """
    held_out = _held_out(corpus, data)
    if held_out == 0:
        raise InputError("data.evaluation_fraction = 0.0 holds no samples out; evaluation needs it above 0")
    first, last = _samples(corpus, data) - held_out, _samples(corpus, data)
    share = _share(global_batch, rank, world)
    cutter = _Cutter(corpus, data.sequence_length, data.within_documents)
    steps = range(min(batches, -(-held_out // global_batch)))
    return (cutter.batch(k + 1, _sequential(first + k * global_batch, share, last)) for k in steps)


def _sequential(start: int, share: range, stop: int) -> NDArray[np.int64]:
    numbers = start + np.arange(share.start, share.stop, dtype=np.int64)
    return np.where(numbers < stop, numbers, -1)


def _samples(corpus: Corpus, data: DataSection) -> int:
    samples = corpus.samples(data.sequence_length)
    if samples == 0:
        raise InputError(
            f"corpus {corpus.path} has {corpus.token_count} tokens, too few for one sample of "
            f"data.sequence_length = {data.sequence_length} (it takes {data.sequence_length + 1}); "
            "prepare more text or shorten the sequence"
        )
    return samples


def _held_out(corpus: Corpus, data: DataSection) -> int:
    """How many samples, from the end of the corpus, are kept from training: at least one if any are wanted."""
    if data.evaluation_fraction == 0.0:
        return 0
    samples = _samples(corpus, data)
    if samples == 1:
        raise InputError(
            f"data.evaluation_fraction = {data.evaluation_fraction} leaves nothing to train on: corpus {corpus.path} "
            f"has one sample of data.sequence_length = {data.sequence_length}"
        )
    return min(samples - 1, max(1, round(samples * data.evaluation_fraction)))


def _share(global_batch: int, rank: int, world: int) -> range:
    if global_batch % world:
        raise InputError(
            f"batch.global_size = {global_batch} is not divisible by the {world} data ranks; the nearest legal values "
            f"are {global_batch // world * world or world} and {(global_batch // world + 1) * world}"
        )
    return range(rank * global_batch // world, (rank + 1) * global_batch // world)


class _Steps:
    """Step numbers from `first`, without end: the sampler of the training loader."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self._first)


def _unchanged(batch: Batch) -> Batch:
    return batch


@dataclass(frozen=True)
class _Cutter:
    """Cuts numbered samples out of the corpus."""

    corpus: Corpus
    sequence: int
    within_documents: bool

    def batch(self, step: int, samples: NDArray[np.int64]) -> Batch:
        """The batch of these samples, -1 standing for one whose labels are ignored."""
        rows = np.full((len(samples), self.sequence + 1), self.corpus.eos, dtype=np.int64)
        for row, sample in zip(rows, samples.tolist(), strict=True):
            if sample >= 0:
                row[:] = self.corpus.sample(sample, self.sequence)
        tokens, labels = rows[:, :-1].copy(), rows[:, 1:].copy()
        labels[samples < 0] = IGNORED
        documents = None
        if self.within_documents:
            ends = tokens == self.corpus.eos
            labels[ends] = IGNORED  # the first token of the next document cannot be foretold from the last
            documents = torch.from_numpy(np.cumsum(ends, axis=1) - ends)
        positions = np.broadcast_to(np.arange(self.sequence, dtype=np.int64), tokens.shape).copy()
        samples_, tokens_, labels_, positions_ = map(torch.from_numpy, (samples, tokens, labels, positions))
        return Batch(step, samples_, tokens_, labels_, documents, positions_)


def _leave_stopping_to_the_rank(worker: int) -> None:
    """What tells a run to stop comes to its whole process group; a rank that saves still needs its workers."""
    os.setpgid(0, 0)


@dataclass(frozen=True)
class _TrainingBatches(Dataset["Batch | InputError"]):
    """The batch of each step, as a map-style data set whose indices are steps."""

    order: Order
    cutter: _Cutter
    global_batch: int
    share: range

    def __getitem__(self, step: int) -> Batch | InputError:
        """The share of this rank in step `step`; an error as a value, which crosses processes without a traceback."""
        start = (step - 1) * self.global_batch
        positions = start + np.arange(self.share.start, self.share.stop, dtype=np.int64)
        try:
            return self.cutter.batch(step, self.order.at(positions))
        except InputError as error:
            return error
