"""What test_compile.py runs on every rank."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters  # no public module counts graphs

from parallel.memory_ranks import batch_of, built
from torchlayout.model.llama import Block


def graphs(label: str, raw: dict[str, Any]) -> dict[str, Any]:
    """How many graphs the blocks of a model needed, after a step, a further step and an evaluation; and why they broke.

    Blocks are traced but not compiled: how many graphs there are does not depend on the compiler, which is slow.
    """
    compile_block = Block.compile
    Block.compile = functools.partialmethod(nn.Module.compile, backend="eager")  # type: ignore[method-assign]
    torch.compiler.reset()
    counters.clear()
    try:
        config, layout, meshes, model = built(label, raw)
        counted = []
        batch = batch_of(config, layout, meshes, 2 * layout.micro_batch)
        scale = torch.ones((), dtype=torch.float64)
        for run in (
            lambda: model.step.forward_backward(batch, scale),
            lambda: model.step.forward_backward(batch, scale),
            lambda: model.step.evaluate(batch),
        ):
            run()
            counted.append(counters["stats"]["unique_graphs"])
        return {"graphs": counted, "breaks": dict(counters["graph_break"])}
    finally:
        Block.compile = compile_block  # type: ignore[method-assign]
