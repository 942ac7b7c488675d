"""Bytes that are alive, and matrix products done, in one process: by following operations, without a device's help."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode  # no public module exports it
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """Follows the storage of every tensor that operations return inside of it, until nothing holds it any more."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {id(storage) for storage in storages_of(tree_leaves((args, kwargs)))}
        for storage in storages_of(tree_leaves(out)):
            # A view is what it was given; so are parameters, which were there before.
            if id(storage) not in given and id(storage) not in self.storages:
                self._follow(storage)
        return out

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        self.storages[key] = weakref.ref(storage, lambda _: self.storages.pop(key, None))

    @property
    def bytes(self) -> int:
        """Of all followed storages, at the size that they have now: FSDP2 empties some without letting go of them."""
        return sum(storage.nbytes() for held in list(self.storages.values()) if (storage := held()) is not None)


def storages_of(values: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    """Storages of the tensors among values that have any: of a DTensor its local part's."""
    for value in values:
        if isinstance(value, Tensor):
            local = getattr(value, "_local_tensor", value)
            if type(local) in (Tensor, torch.nn.Parameter) and local.device.type != "meta":
                yield local.untyped_storage()


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Of distinct storages."""
    return sum(storage.nbytes() for storage in {id(s): s for s in storages_of(tensors)}.values())


class MatrixProducts(TorchDispatchMode):
    """Counts the FLOPs of matrix products and attention on local tensors; of causal attention the half that is done.

    torch's FlopCounterMode counts a DTensor's operation as the whole model's, and knows no attention kernel of the CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forward, self.backward = 0.0, 0.0
        self.within_backward = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flops = _flops(func, args)
        if self.within_backward:
            self.backward += flops
        else:
            self.forward += flops
        return out

    @contextmanager
    def going_backward(self) -> Iterator[None]:
        """Count what happens inside, recomputation too, as done by the backward pass."""
        self.within_backward = True
        yield
        self.within_backward = False


def _flops(func: Any, args: Any) -> float:
    aten = torch.ops.aten
    if any(type(a) not in (Tensor, torch.nn.Parameter) for a in args[:2] if isinstance(a, Tensor)):
        return 0.0  # a DTensor's operation comes by again with its local tensors
    if func in (aten.mm.default, aten.bmm.default):
        return 2.0 * math.prod(args[0].shape) * args[1].shape[-1]
    if func is aten.addmm.default:
        return 2.0 * math.prod(args[1].shape) * args[2].shape[-1]
    if func is aten._scaled_dot_product_flash_attention_for_cpu.default:
        return _attention(args[0], args[1], 2, len(args) > 4 and args[4])
    if func is aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
        return _attention(args[1], args[2], 4, args[7])
    return 0.0


def _attention(q: Tensor, k: Tensor, products: int, causal: bool) -> float:
    """products: of queries x keys x head_dim; four in a backward, as the formula says, though flash does a fifth."""
    pairs = math.prod(q.shape[:3]) * k.shape[2]
    return 2.0 * products * pairs * q.shape[3] / (2 if causal else 1)
