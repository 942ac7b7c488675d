from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh

from torchlayout.config import ModelConfig
from torchlayout.model.initialize import initialize
from torchlayout.model.llama import Llama
from torchlayout.parallel.shard import apply_fully_shard
from torchlayout.train.environment import process_group

SMALL = ModelConfig(vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)


def test_bf16_computes_in_bf16_but_keeps_masters_rotary_tables_and_loss_in_fp32() -> None:
    seen: dict[str, torch.dtype] = {}

    def look(module: torch.nn.Module, arguments: tuple[torch.Tensor, tuple[torch.Tensor, ...], None]) -> None:
        seen["hidden"], seen["rotary"] = arguments[0].dtype, arguments[1][0].dtype

    with process_group(torch.device("cpu"), 60):
        model = Llama(SMALL)
        initialize(model, SMALL, seed=0)
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
        apply_fully_shard(model, mesh, parameters="bf16", reduce="fp32", zero=3)
        model.layers["1"].register_forward_pre_hook(look)  # after FSDP2's own hook, which might cast
        tokens = torch.randint(0, 31, (1, 9))
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.sum().backward()
        assert seen == {"hidden": torch.bfloat16, "rotary": torch.float32}
        assert loss.dtype == torch.float32
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
