"""Ring attention (arXiv 2310.01889): keys and values travel around the context ranks, results combine exactly.

Each rank holds one chunk from the head of the sequence and one from the tail (see `split`), so that at every step of
the ring the causal mask leaves it either all of the queries against half of the keys, or half against all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchlayout.parallel.context.block import Attended, Sight, attend, attend_backward
from torchlayout.parallel.context.split import held_positions


class RingAttention(nn.Module):
    """Causal attention over a sequence cut over the group; takes and returns what `AttentionCore` does.

    documents are those of the whole sequence: [batch, sequence x ranks]. flash: whether torch's flash kernel computes
    a block, or a score matrix.
    """

    def __init__(self, group: dist.ProcessGroup, *, flash: bool) -> None:
        super().__init__()
        self.group, self.flash = group, flash

    @torch.compiler.disable
    def forward(self, q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out: Tensor = _Ring.apply(q, torch.stack([k, v]), documents, self.group, self.flash)
        return out.transpose(1, 2)


@dataclass(frozen=True)
class _Step:
    """One step of the ring: which rows of the queries meet which rows of the visiting keys."""

    queries: slice
    keys: slice
    sight: Sight


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys_values: Tensor, documents: Tensor | None, group: dist.ProcessGroup, flash: bool
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(q.shape, dtype=wide, device=q.device)
        log_sum = torch.full(q.shape[:3], float("-inf"), dtype=wide, device=q.device)
        kept = []
        visiting = keys_values
        for step, last in _steps(q.shape[2], documents, group, flash):
            arriving = None if last else _Travelling(visiting, group)
            k, v = _spread(visiting[:, :, :, step.keys], q.shape[1])
            part = attend(q[:, :, step.queries], k, v, step.sight)
            kept.append(part.kept)
            _combine(out[:, :, step.queries], log_sum[:, :, step.queries], part)
            visiting = visiting if arriving is None else arriving.wait()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, keys_values, out, log_sum, *([] if documents is None else [documents]))
        ctx.group, ctx.flash, ctx.kept = group, flash, kept
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, keys_values, out, log_sum, *rest = ctx.saved_tensors
        wide = torch.promote_types(q.dtype, torch.float32)
        grad_q = torch.zeros(q.shape, dtype=wide, device=q.device)
        visiting, departed = keys_values, None
        steps = _steps(q.shape[2], rest[0] if rest else None, ctx.group, ctx.flash)
        for (step, last), kept in zip(steps, ctx.kept, strict=True):
            arriving = None if last else _Travelling(visiting, ctx.group)
            k, v = _spread(visiting[:, :, :, step.keys], q.shape[1])
            rows = step.queries
            whole = Attended(out[:, :, rows], log_sum[:, :, rows], kept)
            part = attend_backward(gradient[:, :, rows], q[:, :, rows], k, v, whole, step.sight)
            grad_q[:, :, rows] += part.q
            # The gradient of a rank's keys and values travels with them, and comes home with one step more.
            if departed is None:
                travelled = torch.zeros(visiting.shape, dtype=wide, device=q.device)
            else:
                travelled = departed.wait()
            travelled[:, :, :, step.keys] += _gathered(part.k, part.v, visiting.shape[2])
            departed = _Travelling(travelled, ctx.group)
            visiting = visiting if arriving is None else arriving.wait()
        assert departed is not None
        return grad_q.to(q.dtype), departed.wait().to(keys_values.dtype), None, None, None


def _steps(
    length: int, documents: Tensor | None, group: dist.ProcessGroup, flash: bool
) -> Iterator[tuple[_Step, bool]]:
    """What this rank does at each step, and whether it is the last; length: of the local sequence."""
    rank, ranks, half = group.rank(), group.size(), length // 2
    everything, head, tail = slice(0, length), slice(0, half), slice(half, length)
    for turn in range(ranks):
        source = (rank - turn) % ranks
        queries, keys = everything, everything
        if source < rank:
            keys = head  # the visitor's tail lies after all of our queries
        elif source > rank:
            queries = tail  # our head lies before all of the visitor's keys
        mask = None
        if documents is not None:
            own, theirs = (_documents_of(documents, holder, ranks) for holder in (rank, source))
            mask = (own[:, queries, None] == theirs[:, None, keys])[:, None]
        yield _Step(queries, keys, Sight(source == rank, mask, flash)), turn == ranks - 1


def _documents_of(documents: Tensor, rank: int, ranks: int) -> Tensor:
    return documents[:, held_positions("ring", documents.shape[1], rank, ranks).to(documents.device)]


def _spread(keys_values: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values [2, batch, kv_heads, sequence, head_dim], one for each query head."""
    k, v = keys_values.repeat_interleave(heads // keys_values.shape[2], dim=2)
    return k, v


def _gathered(grad_k: Tensor, grad_v: Tensor, kv_heads: int) -> Tensor:
    """The gradient of what was spread."""
    return torch.stack([grad_k, grad_v]).unflatten(2, (kv_heads, -1)).sum(3)


def _combine(out: Tensor, log_sum: Tensor, part: Attended) -> None:
    """Add one block's result to those so far, in place; every query sees itself in the first."""
    both = torch.logaddexp(log_sum, part.log_sum)
    out.mul_((log_sum - both).exp()[..., None]).add_(part.out * (part.log_sum - both).exp()[..., None])
    log_sum.copy_(both)


class _Travelling:
    """A tensor on its way to the next rank of the ring, while the previous rank's arrives."""

    def __init__(self, sent: Tensor, group: dist.ProcessGroup) -> None:
        rank, ranks = group.rank(), group.size()
        self.sent = sent.contiguous()  # kept alive until it has left
        self.received = torch.empty_like(self.sent)
        self.work = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self.sent, group=group, group_peer=(rank + 1) % ranks),
                dist.P2POp(dist.irecv, self.received, group=group, group_peer=(rank - 1) % ranks),
            ]
        )

    def wait(self) -> Tensor:
        for work in self.work:
            work.wait()
        return self.received
