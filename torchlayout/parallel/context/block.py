"""Attention of some queries over some keys, with the log-sum-exp that lets results over different keys be combined.

All tensors are [batch, heads, sequence, head_dim], log-sum-exps [batch, heads, sequence]. A mask [batch, 1, queries,
keys] is True where a key may be seen. Backward takes the output and the log-sum-exp over *all* keys, and then gives
exactly these keys' part of the gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Attended(NamedTuple):
    """Output and log-sum-exp of one block, and what its kernel's backward wants to have back."""

    out: Tensor
    log_sum: Tensor
    kept: tuple[Any, ...] = ()


class Gradients(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor


class Sight(NamedTuple):
    """What queries see of the keys of a block, and how it is computed: by torch's flash kernel or a score matrix."""

    causal: bool
    mask: Tensor | None
    flash: bool


def attend(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Attended:
    """softmax(q k' / sqrt(head_dim)) v, over the keys that may be seen."""
    if not _uses_flash(q, sight):
        return _attend_by_scores(q, k, v, _visible(q, k, sight))
    if q.device.type == "cpu":
        return Attended(*torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, sight.causal))
    out, log_sum, *kept, _ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, sight.causal)
    return Attended(out, log_sum, tuple(kept))


def attend_backward(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Attended, sight: Sight) -> Gradients:
    """Gradients of one block; whole: output and log-sum-exp over all keys, `kept` as this block's forward gave it."""
    if not _uses_flash(q, sight):
        return _backward_by_scores(gradient, q, k, v, whole, _visible(q, k, sight))
    if q.device.type == "cpu":
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return Gradients(*backward(gradient, q, k, v, whole.out, whole.log_sum, 0.0, sight.causal))
    first_q, first_k, longest_q, longest_k, seed, offset = whole.kept
    bounds = (first_q, first_k, longest_q, longest_k)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    return Gradients(*backward(gradient, q, k, v, whole.out, whole.log_sum, *bounds, 0.0, sight.causal, seed, offset))


def _uses_flash(q: Tensor, sight: Sight) -> bool:
    # No flash kernel takes a mask and gives back the log-sum-exp; CUDA's has 16-bit types only.
    return sight.flash and sight.mask is None and (q.device.type == "cpu" or q.dtype.itemsize == 2)


def _visible(q: Tensor, k: Tensor, sight: Sight) -> Tensor | None:
    if not sight.causal:
        return sight.mask
    lower = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return lower if sight.mask is None else lower & sight.mask


def _scores(q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
    scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores if visible is None else scores.masked_fill(~visible, float("-inf"))


def _attend_by_scores(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Attended:
    scores = _scores(q, k, visible)
    log_sum = scores.logsumexp(-1)
    # A query that sees none of these keys has a log-sum-exp of minus infinity, and no weights.
    weights = (scores - log_sum.masked_fill(log_sum.isneginf(), 0.0)[..., None]).exp()
    return Attended(weights.to(v.dtype) @ v, log_sum)


def _backward_by_scores(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Attended, visible: Tensor | None
) -> Gradients:
    weights = (_scores(q, k, visible) - whole.log_sum[..., None]).exp()
    correction = (gradient * whole.out).sum(-1, keepdim=True)
    grad_scores = (weights * (gradient @ v.transpose(2, 3) - correction) * q.shape[-1] ** -0.5).to(q.dtype)
    grad_v = weights.to(gradient.dtype).transpose(2, 3) @ gradient
    return Gradients(grad_scores @ k, grad_scores.transpose(2, 3) @ q, grad_v)
