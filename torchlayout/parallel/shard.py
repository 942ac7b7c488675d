"""FSDP2: parameters, gradients and optimizer states sharded over the data axes, block by block."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from torchlayout.model.llama import Llama

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def apply_fully_shard(model: Llama, mesh: DeviceMesh, *, parameters: str, reduce: str, zero: int | None) -> None:
    """Wrap each block, the embedding, the head and the rest, in place.

    mesh: [shard], or [dp, shard] to replicate over dp; one rank is fine and still gives mixed precision.
    parameters, reduce: the dtype of compute and of gradient reduction. zero 3 frees gathered parameters after
    forward; 2 and 1 keep them until backward. A tied weight is needed at both ends, so the root keeps it whole.
    """
    # Inputs are left alone: hidden states have the embedding's dtype, and casting would narrow the rotary tables.
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[parameters], reduce_dtype=DTYPES[reduce], cast_forward_inputs=False
    )
    tied = model.head is not None and model.embedding is not None and model.config.tie_word_embeddings
    ends = [] if tied else [module for module in (model.embedding, model.head) if module is not None]
    for module in [*model.layers.values(), *ends]:
        # The last block's parameters are wanted again at once by backward, but freeing them keeps the peak low.
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=zero == 3)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def finish_backward(model: nn.Module, finish: bool) -> None:
    """Whether the next backward reduces gradients and frees gathered parameters, or keeps both (zero1)."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(finish)
    model.set_reshard_after_backward(finish)
    model.set_is_last_backward(finish)
