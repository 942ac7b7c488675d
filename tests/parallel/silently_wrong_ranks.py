"""What test_silently_wrong.py runs on every rank."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from torchlayout.config import Config, ModelConfig
from torchlayout.layout import Layout
from torchlayout.model.llama import Block, Llama
from torchlayout.parallel.microbatches import DeviceBatch
from torchlayout.parallel.tensor import apply_tensor_parallel
from torchlayout.train.environment import pick_device
from torchlayout.train.optimizer import squared_gradient_norm
from torchlayout.train.trainer import Trainer


def unchecked_gradients(label: str, raw: dict[str, Any], hook: bool = True) -> dict[str, Any]:
    """The first gradient of a layout that no rule has been asked about: its norm, what got none, or what was raised.

    hook: whether the vocabulary-parallel embedding's output is cloned, as `parallel.tensor` does it. Blocks are traced
    as they are for compilation, but not compiled: what is wrong comes from tracing, and compiling takes a minute.
    """
    Block.compile = functools.partialmethod(nn.Module.compile, backend="aot_eager")  # type: ignore[method-assign]
    trainer = Trainer(Config.from_dict(raw), Layout.parse(label), pick_device())
    if not hook:
        remove_clone(trainer.model.parts[0])
    batch = next(trainer.batches)
    scale = 1 / trainer.count_labels(batch.labels)
    trainer.close()
    try:
        trainer.model.step.forward_backward(DeviceBatch.of(batch, trainer.device), scale)
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    trainer.model.finish_gradients()
    with_gradient = [p for _, p in trainer.own_parameters if p.grad is not None]
    squared = squared_gradient_norm(with_gradient)
    dist.all_reduce(squared)
    missing = [name for part in trainer.model.parts for name, p in part.named_parameters() if p.grad is None]
    return {"norm": squared.sqrt().item(), "missing": missing}


def embedding_output(sequence_parallel: bool) -> tuple[bool, bool]:
    """Whether a vocabulary-parallel embedding returns a view, and whether it did without our hook."""
    config = ModelConfig(vocab_size=9, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=2)
    mesh, model = init_device_mesh("cpu", (dist.get_world_size(),)), Llama(config)
    apply_tensor_parallel(model, mesh, sequence_parallel=sequence_parallel)
    tokens = torch.arange(8).view(1, 8)
    ours = model.embedding(tokens)._is_view()
    remove_clone(model)
    return ours, model.embedding(tokens)._is_view()


def remove_clone(model: Llama) -> None:
    hooks = model.embedding._forward_hooks
    (ours,) = [key for key, function in hooks.items() if function.__module__ == "torchlayout.parallel.tensor"]
    del hooks[ours]


def initialised_by_torch() -> bool:
    """Whether nn.init, at the same seed on every rank, gives the shards of a matrix equal values."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    matrix = nn.Parameter(distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)]))
    nn.init.normal_(matrix)
    whole = matrix.full_tensor()
    return torch.equal(whole[:4], whole[4:])
