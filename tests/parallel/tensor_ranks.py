"""What test_tensor.py runs on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode  # no public module exports it
from torch.utils._pytree import tree_leaves

from torchlayout.model.loss import IGNORED, plain_loss
from torchlayout.parallel import tensor

BATCH, SEQUENCE, HIDDEN = 3, 8, 4
CHUNK = 5


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation on local tensors returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        local = [leaf for leaf in tree_leaves(out) if type(leaf) is Tensor]
        self.elements = max([self.elements, *(leaf.numel() for leaf in local)])
        return out


def example(vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weight and labels, equal on every rank; every row of the vocabulary is some label."""
    generator = torch.Generator().manual_seed(vocabulary)
    hidden = torch.randn(BATCH, SEQUENCE, HIDDEN, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, HIDDEN, generator=generator, dtype=torch.float64)
    labels = torch.arange(BATCH * SEQUENCE).view(BATCH, SEQUENCE) % vocabulary
    labels[0, 2:5] = IGNORED
    labels[1, :2] = vocabulary - 1
    return hidden, weight, labels


def vocabulary_loss(vocabulary: int, sequence_parallel: bool, chunked: bool) -> dict[str, Any]:
    """Differences of loss and gradients from the plain ones, and the elements of the largest tensor on the way."""
    tensor.CHUNK_TOKENS = CHUNK
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    hidden, weight, labels = example(vocabulary)
    plain = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    expected = plain_loss(*plain, labels)
    (expected * 0.3).backward()

    stream = Shard(1) if sequence_parallel else Replicate()
    ours = [
        distribute_tensor(hidden, mesh, [stream]).requires_grad_(),
        distribute_tensor(weight, mesh, [Shard(0)]).requires_grad_(),
    ]
    with LargestTensor() as seen:
        loss = tensor.vocabulary_parallel_loss(*ours, labels, mesh=mesh, stream=stream, chunked=chunked)
        (loss * 0.3).backward()
    return {
        "loss": (loss - expected).abs().item() / expected.item(),
        "hidden": (ours[0].grad.full_tensor() - plain[0].grad).abs().max().item(),
        "weight": (ours[1].grad.full_tensor() - plain[1].grad).abs().max().item(),
        "largest": seen.elements,
    }
