"""Tensor and sequence parallelism (arXiv 1909.08053, 2205.05198), applied to a finished model from outside.

Query, key, value, gate and up are cut by columns, attention output and down by rows; embedding and head by vocabulary,
which need not divide. With sequence parallelism the stretches between them hold [batch, sequence / tp, hidden].
"""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from torchlayout.model.llama import Head, Llama
from torchlayout.model.loss import CHUNK_TOKENS, LOSSES, WholeVocabulary, vocabulary_loss


def apply_tensor_parallel(model: Llama, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Cut the model's parameters over the mesh's one axis, in place."""
    stream: Placement = Shard(1) if sequence_parallel else Replicate()
    if model.embedding is not None:
        parallelize_module(model.embedding, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=stream))
        # The output is a view into a DTensor, on which FSDP2's and a compiled block's hooks are lost (pytorch#191113).
        model.embedding.register_forward_hook(lambda module, arguments, output: output.clone())
    for block in model.layers.values():
        parallelize_module(block, mesh, _block_plan(stream, sequence_parallel))
    if model.head is not None:
        _cut_head(model.head, mesh, stream)
    model.tie()


def _block_plan(stream: Placement, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(
            input_layouts=(stream, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=stream),
        "feed_forward": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),)),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=stream),
    }
    if sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "feed_forward_norm": SequenceParallel()}
    return plan


def _cut_head(head: Head, mesh: DeviceMesh, stream: Placement) -> None:
    plan: dict[str, ParallelStyle] = {"output": ColwiseParallel(input_layouts=stream, output_layouts=Replicate())}
    if isinstance(stream, Shard):
        plan["norm"] = SequenceParallel()
    parallelize_module(head, mesh, plan)
    head.loss = functools.partial(
        vocabulary_parallel_loss, mesh=mesh, stream=stream, chunked=head.loss is LOSSES["chunked"]
    )


class VocabularyShard(WholeVocabulary):
    """Combines the per-token results of the vocabulary rows that each tensor rank holds."""

    def __init__(self, mesh: DeviceMesh, vocabulary: int) -> None:
        step = -(-vocabulary // mesh.size())
        self.first = min(step * mesh.get_local_rank(), vocabulary)
        self.group = mesh.get_group()

    def maximum(self, values: Tensor) -> Tensor:
        dist.all_reduce(values, dist.ReduceOp.MAX, self.group)
        return values

    def total(self, values: Tensor) -> Tensor:
        dist.all_reduce(values, dist.ReduceOp.SUM, self.group)
        return values


def vocabulary_parallel_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, mesh: DeviceMesh, stream: Placement, chunked: bool
) -> Tensor:
    """The summed cross entropy over vocabulary shards; only per-token scalars cross the tensor axis.

    Unless `chunked`, the logits of all tokens (and this rank's rows of the vocabulary) exist at once.

    hidden: [batch, sequence, hidden], cut as `stream` says; weight: [vocabulary, hidden], cut by rows.
    """
    assert isinstance(weight, DTensor)
    if not isinstance(hidden, DTensor):
        hidden = DTensor.from_local(hidden, mesh, [stream], run_check=False)
    whole = hidden.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    chunk_tokens = CHUNK_TOKENS if chunked else max(1, labels.numel())
    return vocabulary_loss(whole, weight.to_local(), labels, VocabularyShard(mesh, weight.shape[0]), chunk_tokens)
