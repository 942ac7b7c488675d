"""Attention kernels by name: sdpa, flash, math, flex. All are causal and grouped-query.

Each takes q [batch, sequence, heads, head_dim], k and v [batch, sequence, kv_heads, head_dim] and, to keep attention
inside documents, the document number of every token [batch, sequence]; it returns [batch, sequence, heads, head_dim].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlayout.errors import InputError

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def attention_mask(documents: Tensor) -> Tensor:
    """Which keys a query may see, [batch, 1, sequence, sequence]: not later ones, and only of its own document."""
    sequence = documents.shape[1]
    causal = torch.ones(sequence, sequence, dtype=torch.bool, device=documents.device).tril()
    return (causal & (documents[:, :, None] == documents[:, None, :]))[:, None]


def sdpa(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
    """torch's scaled_dot_product_attention, which picks the device's best kernel."""
    mask = None if documents is None else attention_mask(documents)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def math(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
    """The score matrix in memory, softmax in fp32 or wider: the "torch" kernel of arXiv 2311.05610."""
    batch, sequence, heads, head_dim = q.shape
    groups = heads // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)))
    scores = (q @ k.transpose(2, 3)) * head_dim**-0.5
    if documents is None:
        documents = torch.zeros(batch, sequence, dtype=torch.long, device=q.device)
    scores = scores.masked_fill(~attention_mask(documents), float("-inf"))
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
    return (weights @ v).transpose(1, 2)


def flash(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
    """The flash-attn package (arXiv 2307.08691); CUDA only. Documents become sequences of variable length."""
    from flash_attn import flash_attn_func, flash_attn_varlen_func

    if documents is None:
        return flash_attn_func(q, k, v, causal=True)
    batch, sequence = documents.shape
    first = torch.ones(batch, sequence, dtype=torch.bool, device=documents.device)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = first.flatten().nonzero().flatten().int()
    bounds = torch.cat([starts, starts.new_tensor([batch * sequence])])
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    out = flash_attn_varlen_func(q, k, v, bounds, bounds, sequence, sequence, causal=True)
    return out.unflatten(0, (batch, sequence))


def flex(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
    """torch's flex_attention with a causal (and document) block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = query >= key
        return seen if documents is None else seen & (documents[batch, query] == documents[batch, key])

    batch, sequence, heads, _ = q.shape
    block_mask = create_block_mask(
        visible, None if documents is None else batch, None, sequence, sequence, device=q.device.type
    )
    out = flex_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_mask=block_mask,
        enable_gqa=heads != k.shape[2],
    )
    assert isinstance(out, Tensor)
    return out.transpose(1, 2)


KERNELS: dict[str, Kernel] = {"sdpa": sdpa, "math": math, "flash": flash, "flex": flex}


class AttentionCore(nn.Module):
    """softmax(q k') v by a named kernel; a module, so that recomputation and context parallelism can wrap it."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.kernel = KERNELS[kernel]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
        return self.kernel(q, k, v, documents)


def check_kernel(kernel: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise InputError where this machine cannot train with the kernel."""
    if kernel == "flash":
        if device.type != "cuda":
            raise InputError(
                f"kernels.attention = 'flash' needs a CUDA GPU, but the device is {device.type}; use 'sdpa'"
            )
        if dtype not in (torch.bfloat16, torch.float16):
            raise InputError("kernels.attention = 'flash' needs precision.parameters = 'bf16'; use 'sdpa' in fp32")
        try:
            import flash_attn  # noqa: F401
        except ImportError:
            raise InputError(
                "kernels.attention = 'flash' needs the flash-attn package: pip install 'torchlayout[flash]'"
            ) from None
    if kernel == "flex" and device.type == "cpu":
        raise InputError("kernels.attention = 'flex' cannot train on the CPU (torch has no backward there); use 'sdpa'")
