"""What test_context.py runs on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # no public module exports it

from torchlayout.model.attention import AttentionCore, sdpa
from torchlayout.parallel.context import held_positions
from torchlayout.parallel.context.ring import RingAttention
from torchlayout.parallel.context.ulysses import UlyssesAttention, transpose

BATCH, HEAD_DIM = 2, 6


def whole(dtype: torch.dtype, sequence: int, heads: int, kv_heads: int) -> list[Tensor]:
    """q, k, v and the gradient of the output, [batch, sequence, heads, head_dim], equal on every rank."""
    generator = torch.Generator().manual_seed(sequence)
    return [
        torch.randn(BATCH, sequence, count, HEAD_DIM, generator=generator, dtype=torch.float64).to(dtype)
        for count in (heads, kv_heads, kv_heads, heads)
    ]


def documents_of(sequence: int) -> Tensor:
    """Documents that begin and end inside the chunks of the ranks, [batch, sequence]."""
    ends = torch.zeros(BATCH, sequence, dtype=torch.long)
    ends[0, [3, 4, sequence // 2 + 1]] = 1
    ends[1, [sequence - 2]] = 1
    return ends.cumsum(1)


def attention(method: str, kernel: str) -> nn.Module:
    group = dist.group.WORLD
    assert group is not None
    if method == "ring":
        return RingAttention(group, flash=kernel != "math")
    return UlyssesAttention(AttentionCore(kernel), group)


def compared(
    method: str, *, heads: int, kv_heads: int, documents: bool, kernel: str = "sdpa", dtype: str = "float64"
) -> dict[str, float]:
    """The largest difference of this rank's output and gradients from plain attention over whole sequences."""
    sequence = 16 * dist.get_world_size()
    *inputs, gradient = whole(getattr(torch, dtype), sequence, heads, kv_heads)
    numbers = documents_of(sequence) if documents else None

    plain = [x.double().clone().requires_grad_() for x in inputs]
    expected = sdpa(*plain, numbers)
    expected.backward(gradient.double())

    held = held_positions(method, sequence, dist.get_rank(), dist.get_world_size())
    local = [x[:, held].requires_grad_() for x in inputs]
    out = attention(method, kernel)(*local, numbers)
    out.backward(gradient[:, held])
    pairs = {"out": (out, expected[:, held])}
    pairs |= {name: (ours.grad, theirs.grad[:, held]) for name, ours, theirs in zip("qkv", local, plain, strict=True)}
    assert all(ours.dtype == getattr(torch, dtype) for ours, _ in pairs.values())
    return {name: (ours.double() - theirs).abs().max().item() for name, (ours, theirs) in pairs.items()}


def work(method: str, sequence: int) -> float:
    """How many pairs of a query and a key this rank's flash kernels meet, over all heads."""
    *inputs, _ = whole(torch.float64, sequence, 4, 4)
    held = held_positions(method, sequence, dist.get_rank(), dist.get_world_size())
    with CountPairs() as counted:
        attention(method, "sdpa")(*(x[:, held] for x in inputs), None)
    return counted.pairs


class CountPairs(TorchDispatchMode):
    """Counts the pairs of a query and a key that flash kernels meet; of a causal square its lower half."""

    pairs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            batch, heads, queries, _ = args[0].shape
            keys, causal = args[1].shape[2], len(args) > 4 and args[4]
            self.pairs += batch * heads * (queries * (queries + 1) // 2 if causal else queries * keys)
        return func(*args, **(kwargs or {}))


def transposed_there_and_back() -> bool:
    """Whether an all-to-all is undone by its counterpart, and gives whole sequences of this rank's heads."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    q = whole(torch.float64, 4 * ranks, 2 * ranks, ranks)[0]
    held = held_positions("ulysses", q.shape[1], rank, ranks)
    group = dist.group.WORLD
    assert group is not None
    there = transpose(q[:, held], 1, 2, group)
    back = transpose(there, 2, 1, group)
    return torch.equal(there, q[:, :, 2 * rank : 2 * rank + 2]) and torch.equal(back, q[:, held])
