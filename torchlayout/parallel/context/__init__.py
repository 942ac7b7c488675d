"""Context parallelism: each context rank holds a part of every sequence, and attention reaches across."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from torchlayout.layout import Layout
from torchlayout.model.llama import Llama
from torchlayout.parallel.context.ring import RingAttention
from torchlayout.parallel.context.split import held_positions
from torchlayout.parallel.context.ulysses import UlyssesAttention

__all__ = ["apply_context_parallel", "held_positions"]


def apply_context_parallel(model: Llama, layout: Layout, mesh: DeviceMesh) -> None:
    """Replace the attention core of each block, in place; everything else in a block is position-wise."""
    group = mesh.get_group()
    for block in model.layers.values():
        attention = block.get_submodule("attention")
        if layout.context_method == "ulysses":
            attention.core = UlyssesAttention(attention.get_submodule("core"), group)
        else:
            attention.core = RingAttention(group, flash=layout.attention != "math")
