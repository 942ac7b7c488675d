"""Ulysses (arXiv 2309.14509): trade the sequence for heads around any attention kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class UlyssesAttention(nn.Module):
    """Whole sequences of a part of the heads, by an all-to-all before and after the kernel.

    Takes and returns what `AttentionCore` does, but for the sequence cut over the group; documents are those of the
    whole sequence. Heads and key/value heads must be divisible by the group's size.
    """

    def __init__(self, core: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.core, self.group = core, group

    @torch.compiler.disable
    def forward(self, q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
        q, k, v = (_Transpose.apply(x, 1, 2, self.group) for x in (q, k, v))
        return _Transpose.apply(self.core(q, k, v, documents), 2, 1, self.group)


class _Transpose(torch.autograd.Function):
    """Gather dimension `gathered` (1 sequence, 2 heads) over the group and cut dimension `cut`; its own inverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gathered: int, cut: int, group: dist.ProcessGroup) -> Tensor:
        ctx.axes, ctx.group = (gathered, cut), group
        return transpose(x, gathered, cut, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gathered, cut = ctx.axes
        return transpose(gradient, cut, gathered, ctx.group), None, None, None


def transpose(x: Tensor, gathered: int, cut: int, group: dist.ProcessGroup) -> Tensor:
    """All-to-all of x [batch, sequence, heads, head_dim]: the parts of dimension `cut`, for those of `gathered`."""
    sent = torch.stack(x.chunk(group.size(), dim=cut)).contiguous()  # stack keeps the strides of a transposed gradient
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), dim=gathered)
