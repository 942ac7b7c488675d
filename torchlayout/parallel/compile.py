"""torch.compile, block by block: one graph serves every block of a model, and FSDP2's hooks stay outside of it."""

from __future__ import annotations

from torchlayout.layout import Layout
from torchlayout.model.llama import Llama


def apply_compile(model: Llama, layout: Layout) -> None:
    """Compile each block at its first call, in place: one graph, or two around a context-parallel attention core."""
    for block in model.layers.values():
        block.compile(fullgraph=layout.context == 1)
