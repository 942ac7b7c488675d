"""The training step, and the loop around it. Everything that is not the step is an observer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from torchlayout.config import Config
from torchlayout.data.corpus import Corpus
from torchlayout.data.loader import Batch, batch_digest, training_batches
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.model.initialize import weights_digest
from torchlayout.model.loss import IGNORED
from torchlayout.parallel.context import held_positions
from torchlayout.parallel.mark import Mark, unmarked
from torchlayout.parallel.mesh import build_meshes
from torchlayout.parallel.microbatches import DeviceBatch
from torchlayout.parallel.parallelize import parallelize
from torchlayout.train.environment import MemoryMeter
from torchlayout.train.exchange import StepFacts, exchange_step, sum_over_ranks
from torchlayout.train.optimizer import build_optimizer, clip_gradients, learning_rate, squared_gradient_norm
from torchlayout.train.stop import StopRequest, stop_reason


class TrainingStopped(Exception):
    """Training cannot usefully go on; the message says why."""


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did, the same on every rank. loss is before the update, grad_norm before clipping.

    stop: why the run has to end after this step, or None.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    seconds: float
    data_seconds: float
    peak_memory_bytes_by_rank: tuple[int, ...]
    batch_digest: str
    skipped: bool
    stop: str | None = None
    evaluation_loss: float | None = None


class Observer(Protocol):
    """Sees every step on every rank, and may add to its result."""

    def after_step(self, trainer: Trainer, result: StepResult) -> StepResult: ...


class Around(Protocol):
    """What surrounds every step with its observers, on every rank."""

    def step(self, trainer: Trainer) -> AbstractContextManager[object]: ...


class Trainer:
    """A model in its layout, its optimizer and its data, ready to step."""

    def __init__(self, config: Config, layout: Layout, device: torch.device) -> None:
        self.config, self.layout, self.device = config, layout, device
        self.meshes = build_meshes(layout, device.type)
        self.corpus = Corpus.open(config.data.path)
        if self.corpus.vocabulary > config.model.vocab_size:
            raise InputError(
                f"model.vocab_size = {config.model.vocab_size} is less than the {self.corpus.vocabulary} ids of the "
                f"tokenizer of {config.data.path}; set it to {self.corpus.vocabulary} or more"
            )
        self.loader = training_batches(
            self.corpus,
            config.data,
            global_batch=config.batch.global_size,
            seed=config.run.seed,
            rank=self.meshes.data_rank,
            world=layout.data_ranks,
        )
        self.batches = iter(self.loader)
        self.model = parallelize(config, layout, self.meshes, device)
        # Taken now, while all are sharded: after a forward pass alone some layouts hold gathered ones.
        self.copies = self.model.named_copies()
        self.own_parameters = self.model.own_parameters(self.meshes.coordinate("tp"))
        self.initial_weights_digest = self.weights_digest()
        self.optimizer = build_optimizer(self.model.parameters(), config.optimizer, device)
        self.steps_done = 0
        self.skipped_in_a_row = 0
        self.gradients_seen = False
        self.stop = StopRequest(config.train.wall_time_limit_minutes)
        self.memory = MemoryMeter(device)
        self.mark: Mark = unmarked

    def step(self) -> StepResult:
        """One optimizer step on the next global batch."""
        started = time.perf_counter()
        step = self.steps_done + 1
        with self.mark("data"):
            batch = self.held_part(next(self.batches))
        data_seconds = time.perf_counter() - started

        rate = learning_rate(step, self.config.train.steps, self.config.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.mark("exchange"):
            valid_tokens = self.count_labels(batch.labels)
        # Gradients are averaged over replicas and shards, so the sum they should be is asked for here.
        scale = self.layout.data_ranks * self.layout.context / valid_tokens.clamp(min=1)
        summed_loss = self.model.step.forward_backward(DeviceBatch.of(batch, self.device), scale, self.mark)
        with self.mark("reduce"):
            self.model.finish_gradients()
        if not self.gradients_seen:
            self.require_gradients()
            self.gradients_seen = True
        with self.mark("clip"):
            squared_norm = squared_gradient_norm([parameter for _, parameter in self.own_parameters])
        with self.mark("exchange"):
            facts = self.exchange(batch, summed_loss, squared_norm, data_seconds)
        loss, norm = facts.summed_loss / max(1, int(valid_tokens)), facts.grad_norm

        finite = math.isfinite(loss) and math.isfinite(norm)
        with self.mark("clip"):
            if finite and self.config.optimizer.clip_norm > 0:
                clip_gradients(self.model.parameters(), norm, self.config.optimizer.clip_norm)
        with self.mark("optimizer"):
            if finite:
                self.optimizer.step()
            self.optimizer.zero_grad()
        self.steps_done = step
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        return StepResult(
            step=step,
            loss=loss,
            grad_norm=norm,
            learning_rate=rate,
            tokens=step * self.config.batch.global_size * self.config.data.sequence_length,
            seconds=time.perf_counter() - started,
            data_seconds=facts.data_seconds,
            peak_memory_bytes_by_rank=facts.peak_memory_bytes_by_rank,
            batch_digest=facts.batch_digest,
            skipped=not finite,
            stop=stop_reason(facts.stop),
        )

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """Token-weighted mean loss of held-out batches."""
        summed_loss, labels = 0.0, 0
        for batch in map(self.held_part, batches):
            labels += int(self.count_labels(batch.labels))
            part = self.model.step.evaluate(DeviceBatch.of(batch, self.device))
            summed_loss += self.exchange(batch, part, torch.zeros_like(part), 0.0).summed_loss
        return summed_loss / max(1, labels)

    def held_part(self, batch: Batch) -> Batch:
        """What this context rank holds of its data rank's sequences; documents stay whole, attention needs them."""
        if self.layout.context == 1:
            return batch
        held = held_positions(
            self.layout.context_method, batch.tokens.shape[1], self.meshes.coordinate("cp"), self.layout.context
        )
        tokens, labels, positions = (part[:, held] for part in (batch.tokens, batch.labels, batch.positions))
        return replace(batch, tokens=tokens, labels=labels, positions=positions)

    def count_labels(self, labels: Tensor) -> Tensor:
        """How many labels of the global batch count, from this data rank's part; fp64, so that it can divide."""
        count = (labels != IGNORED).sum().to(self.device, torch.float64)
        for axis in ("dp", "shard"):
            dist.all_reduce(count, group=self.meshes.parameters.get_group(axis))
        return count

    def exchange(self, batch: Batch, summed_loss: Tensor, squared_norm: Tensor, data_seconds: float) -> StepFacts:
        """Tell the other ranks of this rank's part of a step, and hear of theirs."""
        return exchange_step(
            self.meshes,
            summed_loss=summed_loss,
            squared_norm=squared_norm,
            digest=batch_digest(batch.samples, batch.positions, batch.tokens, batch.labels),
            data_seconds=data_seconds,
            peak_memory_bytes=self.memory.peak_bytes(),
            stop=self.stop.code(),
        )

    def weights_digest(self) -> str:
        """16 hexadecimal characters over the whole model's weights, the same in every layout."""
        return f"{sum_over_ranks(weights_digest(self.own_parameters), self.device):016x}"

    def require_gradients(self) -> None:
        """Raise where a parameter got no gradient: the optimizer would pass over it in silence."""
        missing = [name for part in self.model.parts for name, p in part.named_parameters() if p.grad is None]
        if missing:
            raise RuntimeError(f"layout {self.layout}: no gradient reached {', '.join(missing)}")

    def close(self) -> None:
        """Stop the processes that read data."""
        self.loader.close()

    def fit(self, observers: Sequence[Observer], around: Around | None = None) -> str | None:
        """Step to the end, or until a rank is told to stop, and then say why.

        Raises TrainingStopped after too many non-finite steps in a row.
        """
        while self.steps_done < self.config.train.steps:
            with nullcontext() if around is None else around.step(self):
                result = self.step()
                for observer in observers:
                    result = observer.after_step(self, result)
            if self.skipped_in_a_row >= self.config.train.stop_after_non_finite:
                raise TrainingStopped(
                    f"stopped at step {result.step}: loss or gradient was not finite in {self.skipped_in_a_row} steps "
                    f"in a row (loss {result.loss}, gradient norm {result.grad_norm}); lower "
                    f"optimizer.learning_rate = {self.config.optimizer.learning_rate:g} or lengthen the warm-up"
                )
            if result.stop is not None and self.steps_done < self.config.train.steps:
                return result.stop
        return None
