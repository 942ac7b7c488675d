"""The range of the loss: the head's forward, where it is computed; the model itself knows of no profiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.profiler import record_function

from torchlayout.model.llama import Llama
from torchlayout.trace.ranges import Range


@contextmanager
def loss_marked(parts: Sequence[Llama]) -> Iterator[None]:
    """Mark the head of those parts that have one, inside of the block."""
    opened: list[record_function] = []

    def begin(head: nn.Module, inputs: Any) -> None:
        opened.append(record_function(str(Range("loss"))))
        opened[-1].__enter__()

    def end(head: nn.Module, inputs: Any, output: Any) -> None:
        opened.pop().__exit__(None, None, None)

    heads = [part.head for part in parts if part.head is not None]
    hooks = [
        hook for head in heads for hook in (head.register_forward_pre_hook(begin), head.register_forward_hook(end))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
