"""What test_recompute.py, test_zero.py and benchmarks/memory.py measure on every rank."""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode  # no public module exports it

from harness import formulas
from harness.memory import Alive, MatrixProducts, bytes_of
from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.model.count import flops_per_token, recomputed_flops_per_token
from torchlayout.parallel.context import held_positions
from torchlayout.parallel.mesh import Meshes, build_meshes
from torchlayout.parallel.microbatches import DeviceBatch
from torchlayout.parallel.parallelize import ParallelModel, parallelize
from torchlayout.train.optimizer import build_optimizer

CPU = torch.device("cpu")
MODEL = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def built(label: str, raw: dict[str, Any]) -> tuple[Config, Layout, Meshes, ParallelModel]:
    """raw: the tables of a configuration without [layout]; no corpus is read."""
    config = Config.from_dict({"data": {"path": "none"}} | raw | {"layout": {"label": label}})
    layout = config.layout_for(dist.get_world_size())
    assert config.check(layout.world) == []
    meshes = build_meshes(layout, "cpu")
    return config, layout, meshes, parallelize(config, layout, meshes, CPU)


def batch_of(config: Config, layout: Layout, meshes: Meshes, sequences: int) -> DeviceBatch:
    """Random tokens, and of them what this context rank holds."""
    length = config.data.sequence_length
    whole = torch.randint(0, config.model.vocab_size, (sequences, length + 1), generator=torch.Generator())
    held = held_positions(layout.context_method, length, meshes.coordinate("cp"), layout.context)
    tokens, labels, positions = (
        part[:, held] for part in (whole[:, :-1], whole[:, 1:], torch.arange(length).expand(sequences, -1))
    )
    return DeviceBatch(tokens, labels, positions, None)


def activations(label: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Bytes that blocks keep of one sequence after its forward pass, FLOPs of the step, and both by formula."""
    config, layout, meshes, model = built(label, raw)
    (part,), batch = model.parts, batch_of(config, layout, meshes, 1)
    tokens, precision = batch.tokens.numel(), config.precision.parameters
    names = [name for name, _ in part.named_parameters()]
    with MatrixProducts() as products, Alive() as alive:
        loss = part(batch.tokens, **batch.others())
        gc.collect()
        kept = alive.bytes
        with products.going_backward():
            loss.sum().backward()
    sizes = (config.model, config.data.sequence_length)
    needed = flops_per_token(*sizes, "exact") * tokens
    return {
        "names": names,
        "bytes": kept - _ends(config, layout, tokens),
        "bytes by formula": formulas.activations(config.model, layout, precision, config.data.sequence_length),
        "flops": products.forward + products.backward,
        "needed flops": needed,
        "recomputed": products.forward + products.backward - needed,
        "recomputed by formula": recomputed_flops_per_token(*sizes, layout, "exact", config.kernels.loss) * tokens,
    }


def _ends(config: Config, layout: Layout, tokens: int) -> float:
    """What embedding, rotary tables and head keep: norm (input, normed, result, root), log-sum of the loss, tables."""
    width = formulas.WIDTH[config.precision.parameters]
    wide, hidden = max(4, width), config.model.hidden_size
    head = wide * (2 * hidden + 1) + width * hidden + wide
    tables = 2 * wide * config.model.head_dim // 2
    return tokens * (head + tables) + wide


def held(label: str, raw: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What a rank holds of parameters, gradients and states over a step of three micro-batches, as `formulas.Held`."""
    config, layout, meshes, model = built(label, raw)
    optimizer = build_optimizer(model.parameters(), config.optimizer, CPU)
    batch = batch_of(config, layout, meshes, 3 * layout.micro_batch)
    with Watch(model) as watch:
        model.step.forward_backward(batch, torch.ones((), dtype=torch.float64))
    optimizer.step()
    measured = formulas.Held(
        parameters=bytes_of(model.parameters()),
        gradients=bytes_of(p.grad for p in model.parameters() if p.grad is not None),
        states=bytes_of(t for state in optimizer.state.values() for t in state.values() if t.ndim),
        gathered=watch.gathered,
        unsharded_gradients=watch.gradients,
    )
    by_formula = formulas.held(config.model, layout, config.precision.parameters, config.precision.reduce)
    return {"measured": asdict(measured), "formula": asdict(by_formula)}


class Watch(TorchDispatchMode):
    """The most that FSDP2 holds gathered, and of gradients that are not reduced yet; no public call tells.

    Looks after each operation, since at the end both are gone.
    """

    def __init__(self, model: ParallelModel) -> None:
        super().__init__()
        self.parameters = [
            parameter
            for part in model.parts
            for module in part.modules()
            if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group) is not None
            for parameter in group.fsdp_params
        ]
        self.gathered = self.gradients = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.gathered = max(self.gathered, bytes_of(t for p in self.parameters for t in p.all_gather_outputs))
        self.gradients = max(self.gradients, bytes_of(g for p in self.parameters for g in self._gradients(p)))
        return out

    @staticmethod
    def _gradients(parameter: Any) -> list[Tensor]:
        unsharded = getattr(parameter, "_unsharded_param", None)
        found = [parameter.unsharded_accumulated_grad, None if unsharded is None else unsharded.grad]
        return [gradient for gradient in found if gradient is not None]
