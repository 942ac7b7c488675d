"""Seconds of the embedding and of the head with its loss, for one micro-batch on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchlayout.plan.time.block import Blocks, Pass, Work

if TYPE_CHECKING:
    from torchlayout.plan.job import Job

EMBEDDING_BYTES = 10
"""Traffic of looking rows up and of scattering their gradients, bytes a token and hidden unit (bf16 in and out)."""


def embedding(blocks: Blocks, job: Job) -> Pass:
    """The embedding: rows copied, an all-reduce or scatter of them over tensor ranks, the whole gradient added."""
    shape, layout, numbers = blocks.shape(job), job.layout, blocks.calibration.compute
    group = blocks.links.group(layout.tensor, 1)
    sent = 2.0 * job.tokens * shape.hidden
    reduce = blocks.links.gather if layout.sequence_parallel else blocks.links.all_reduce
    wise = blocks.kernels.traffic(EMBEDDING_BYTES * job.tokens * shape.hidden)
    add = blocks.kernels.traffic(numbers.accumulate_bytes * shape.embedding / layout.tensor)
    forward = Work(elementwise=wise, tensor=reduce(sent, group))
    return Pass(forward, Work(elementwise=wise + add, tensor=forward.tensor), Work(), Work())


def head(blocks: Blocks, job: Job) -> Pass:
    """The head's product and the loss; a chunked loss does the product again in backward."""
    shape, layout, numbers = blocks.shape(job), job.layout, blocks.calibration.compute
    software, kernels, rows = blocks.software, blocks.kernels, float(job.tokens)
    words = shape.vocabulary / layout.tensor
    product = kernels.product(rows, words, shape.hidden)
    data = kernels.product(rows, shape.hidden, words)
    weight = kernels.product(shape.hidden, words, rows)
    seen = shape.vocabulary if software.gathered_logits else words
    wise = kernels.traffic(numbers.logit_bytes / 2 * rows * seen)
    add = kernels.traffic(numbers.accumulate_bytes * shape.head / layout.tensor)
    group = blocks.links.group(layout.tensor, 1)
    tensor = 0.0
    if layout.tensor > 1:
        sent = 2.0 * rows * shape.hidden
        tensor = blocks.links.gather(sent, group) if layout.sequence_parallel else blocks.links.all_reduce(sent, group)
    gathered = blocks.links.gather(2.0 * rows * shape.vocabulary, group) if software.gathered_logits else 0.0
    again = product if software.chunked_loss and job.loss == "chunked" else 0.0
    return Pass(
        Work(matmul=product, elementwise=wise, tensor=gathered),
        Work(matmul=again + data + weight, elementwise=wise + add, tensor=tensor),
        Work(matmul=weight),
        Work(),
    )
