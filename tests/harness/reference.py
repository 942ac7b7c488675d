"""Training written out plainly, for one process: what every layout is compared with.

Only the model's layers, the corpus and the order of samples come from torchlayout; loss, accumulation, clipping,
learning rate and update are written here again.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlayout.config import Config
from torchlayout.data.corpus import Corpus
from torchlayout.data.loader import batch_digest
from torchlayout.data.order import Order
from torchlayout.model.initialize import initialize
from torchlayout.model.llama import Llama


def train_plainly(raw: dict[str, Any]) -> dict[str, Any]:
    """Losses, gradient norms and digests of each step, and the final parameters."""
    config = Config.from_dict(raw)
    dtype = {"fp32": torch.float32, "fp64": torch.float64}[config.precision.parameters]
    model = Llama(config.model, attention=config.kernels.attention, norm=config.kernels.norm).to(dtype)
    initialize(model, config.model, config.run.seed)
    settings = config.optimizer
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=settings.betas,
        eps=settings.epsilon,
    )
    losses, norms, digests = [], [], []
    for step in range(1, config.train.steps + 1):
        samples, tokens, labels, documents = global_batch(config, step)
        logits = model(tokens, documents=documents)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="mean")
        loss.backward()
        norm = torch.sqrt(sum(p.grad.double().pow(2).sum() for p in model.parameters()))
        assert norm > settings.clip_norm, "clipping must be active"
        for p in model.parameters():
            p.grad *= settings.clip_norm / (float(norm) + 1e-6)
        for group in optimizer.param_groups:
            group["lr"] = rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        norms.append(norm.item())
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        digests.append(f"{batch_digest(samples, positions, tokens, labels):016x}")
    parameters = {name: p.detach().double() for name, p in model.named_parameters()}
    return {"losses": losses, "norms": norms, "digests": digests, "parameters": parameters}


def global_batch(config: Config, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Sample numbers, tokens, labels and documents of a step, read one sample at a time."""
    corpus, size, length = (
        Corpus.open(config.data.path),
        config.batch.global_size,
        config.data.sequence_length,
    )
    order = Order(corpus.samples(length), config.run.seed, config.data.shuffle)
    samples = torch.as_tensor(order.at(torch.arange((step - 1) * size, step * size).numpy()))
    windows = torch.stack([torch.as_tensor(corpus.sample(int(i), length)) for i in samples])
    tokens, labels = windows[:, :-1].long(), windows[:, 1:].clone().long()
    if not config.data.within_documents:
        return samples, tokens, labels, None
    ends = tokens == corpus.eos
    labels[ends] = -100
    return samples, tokens, labels, ends.long().cumsum(1) - ends.long()


def rate(config: Config, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth."""
    settings, steps = config.optimizer, config.train.steps
    if step <= settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    done = (step - settings.warmup_steps) / (steps - settings.warmup_steps)
    low = settings.minimum_ratio
    return settings.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done)))
