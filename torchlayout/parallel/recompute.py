"""Activation recomputation (arXiv 1604.06174): trade a part of the forward pass, done again, for memory."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from torchlayout.layout import Layout
from torchlayout.model.llama import Llama


def apply_recomputation(model: Llama, layout: Layout) -> None:
    """Wrap the forward of blocks, or of what is inside them, in place.

    ckpt and ckptK: all of the blocks whose number in the whole model is divisible by K; ckptattn: the attention core
    (arXiv 2205.05198); selective: everything but matrix products, attention and reductions over tensor ranks.
    """
    for number, block in model.layers.items():
        if layout.recompute_every and int(number) % layout.recompute_every == 0:
            _wrap(block)
        elif layout.recompute == "ckptattn":
            attention = block.get_submodule("attention.core")
            _wrap(attention)
        elif layout.recompute == "selective":
            _wrap(block, context_fn=functools.partial(create_selective_checkpoint_contexts, _policy))


def _wrap(module: nn.Module, **options: Any) -> None:
    """Replace the forward method, not the module: parameter names stay as they are, and hooks run once."""
    forward = module.forward

    # A function of ours, since torch.compile does not enter a frame that is torch's own.
    def recomputed(*arguments: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **options)

    module.forward = recomputed


def _kept_operations() -> frozenset[Any]:
    aten, collective = torch.ops.aten, torch.ops._c10d_functional
    return frozenset(
        {
            aten.mm.default,
            aten.bmm.default,
            aten.addmm.default,
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
            aten._scaled_dot_product_fused_attention_overrideable.default,
            torch.ops.higher_order.flex_attention,
            # A gather is cheaper to do again than to keep; a reduction has a matrix product behind it.
            collective.reduce_scatter_tensor.default,
            collective.all_reduce.default,
        }
    )


def _policy(context: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    if operation in _kept_operations():
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
