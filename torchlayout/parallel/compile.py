"""torch.compile, block by block: one graph serves every block of a model, and FSDP2's hooks stay outside of it."""

from __future__ import annotations

from torchlayout.model.llama import Llama


def apply_compile(model: Llama) -> None:
    """Compile each block at its first call, in place."""
    for block in model.layers.values():
        block.compile(fullgraph=True)
