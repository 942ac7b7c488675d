from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore  # no public module has the fake group

from torchlayout.config import Config, ModelConfig
from torchlayout.layout import Layout
from torchlayout.model.initialize import BLOCK_ROWS, held_part, initialize, weights_digest
from torchlayout.model.llama import Llama
from torchlayout.parallel.mesh import build_meshes
from torchlayout.parallel.parallelize import ParallelModel, parallelize

CPU = torch.device("cpu")
# Three blocks of rows, the last one short; the vocabulary divides by no degree.
VOCABULARY = 2 * BLOCK_ROWS + 151


def described(**changes: object) -> ModelConfig:
    fields = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return ModelConfig(**fields | changes)  # type: ignore[arg-type]


def whole(seed: int = 5, **changes: object) -> Llama:
    """The model in one piece."""
    config = described(**changes)
    model = Llama(config)
    initialize(model, config, seed)
    return model


def digest(model: Llama) -> int:
    return weights_digest(model.named_parameters())


@contextmanager
def playing(rank: int, world: int) -> Iterator[None]:
    """This process as one rank of many: communication does nothing, places are real."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        # DTensor remembers results by their mesh; the next rank's mesh is equal to this one but not the same.
        _clear_sharding_prop_cache()


def on_every_rank(label: str, tied: bool) -> Iterator[tuple[int, ParallelModel]]:
    """(tensor rank, model) as each rank of a layout builds it."""
    layout = Layout.parse(label)
    config = Config.from_dict(
        {
            "run": {"seed": 5},
            "model": described(tie_word_embeddings=tied).model_dump(exclude_none=True),
            "data": {"path": "none", "sequence_length": 16},
            "batch": {"global_size": 8},
            "precision": {"parameters": "fp32"},
        }
    )
    for rank in range(layout.world):
        with playing(rank, layout.world):
            meshes = build_meshes(layout, "cpu")
            yield meshes.coordinate("tp"), parallelize(config, layout, meshes, CPU)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "label",
    ["fsdp3", "dp2-fsdp2", "tp2+sp", "fsdp2-cp2", "pp3", "pp2+zbv", "dp2-fsdp2-tp2+sp", "pp2-fsdp2-tp2+sp"],
)
def test_what_a_rank_draws_are_the_same_elements_of_the_whole(label: str, tied: bool) -> None:
    reference = whole(tie_word_embeddings=tied)
    named, counted, held = dict(reference.named_parameters()), 0, 0
    for tensor_rank, model in on_every_rank(label, tied):
        for name, parameter in model.named_parameters():
            part = held_part(parameter)
            assert torch.equal(part.local, named[name][part.slices]), name
        own = model.own_parameters(tensor_rank)
        counted += weights_digest(own)
        held += sum(held_part(parameter).local.numel() for _, parameter in own)
    assert held == sum(parameter.numel() for parameter in named.values())
    assert counted % 2**64 == digest(reference)


def test_a_pipeline_draws_both_copies_of_a_tied_weight_alike() -> None:
    copies = []
    for rank, (_, model) in enumerate(on_every_rank("pp2", tied=True)):
        (part,) = model.parts
        assert (part.embedding is None, part.head is None) == (rank == 1, rank == 0)
        copies.append(held_part((part.embedding or part.head.output).weight).local)
    assert torch.equal(*copies)
    assert copies[0].shape == (VOCABULARY, 32)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_the_digest_is_the_same_however_a_matrix_is_cut(placement: Shard | Replicate) -> None:
    matrix = torch.randn(VOCABULARY, 10, generator=torch.Generator().manual_seed(0))
    total = 0
    for rank in range(4):
        with playing(rank, 4):
            mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
            pieces = matrix.chunk(4, placement.dim) if isinstance(placement, Shard) else [matrix] * 4
            piece = DTensor.from_local(
                pieces[rank], mesh, [placement], run_check=False, shape=matrix.shape, stride=matrix.stride()
            )
            if not held_part(piece).duplicate:
                total += weights_digest([("m", piece)])
    assert total % 2**64 == weights_digest([("m", matrix)])


def changed(model: Llama, name: str, change: str) -> list[tuple[str, Tensor]]:
    """The model's parameters with one of them changed in a small way."""
    tensor = model.get_parameter(name).detach().clone()
    if change == "last bit of an element":
        tensor.view(torch.int32)[1500, 7] ^= 1
    elif change == "sign of a zero":
        tensor[0, 0] = -0.0
    elif change == "two rows swapped":
        tensor[[3, 1999]] = tensor[[1999, 3]]
    elif change == "two elements swapped":
        tensor[5, [0, 1]] = tensor[5, [1, 0]]
    other = "layers.9.weight" if change == "another name" else name
    return [(other, tensor) if key == name else (key, value) for key, value in model.named_parameters()]


@pytest.mark.parametrize(
    "change",
    ["last bit of an element", "sign of a zero", "two rows swapped", "two elements swapped", "another name", "nothing"],
)
def test_the_digest_sees_the_smallest_change(change: str) -> None:
    model, name = whole(), "embedding.weight"
    with torch.no_grad():
        model.embedding.weight[0, 0] = 0.0
    assert (weights_digest(changed(model, name, change)) == digest(model)) == (change == "nothing")


def test_seed_and_name_and_block_give_different_numbers() -> None:
    model, other = whole(seed=5), whole(seed=6)
    assert digest(model) == digest(whole(seed=5)) != digest(other)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    starts = [parameter[block, :8] for parameter in matrices for block in range(0, len(parameter), BLOCK_ROWS)]
    normed = torch.stack([start / start.norm() for start in starts])
    similarity = normed @ normed.T - torch.eye(len(starts))
    assert similarity.max() < 0.999
    assert len(starts) == len(matrices) + 4  # embedding and head have three blocks


def test_initial_weights_have_the_stated_deviations() -> None:
    model = whole(hidden_size=128, intermediate_size=256, num_hidden_layers=2)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        expected = 0.02 / math.sqrt(2 * 2) if residual else 0.02
        spread = 4 / math.sqrt(parameter.numel())
        assert parameter.std().item() == pytest.approx(expected, rel=spread), name
        assert abs(parameter.mean().item()) < spread * expected, name


def test_a_rank_never_draws_the_whole_of_a_large_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    normal = Tensor.normal_
    monkeypatch.setattr(
        Tensor, "normal_", lambda self, *a, **k: (drawn.append(self.shape[0]), normal(self, *a, **k))[1]
    )
    with playing(3, 4):
        mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
        rows = 16 * BLOCK_ROWS
        local = torch.empty(rows // 4, 4)
        part = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(rows, 4), stride=(4, 1))
        module = torch.nn.Module()
        module.register_parameter("weight", torch.nn.Parameter(part))
        initialize(module, described(), seed=0)
    assert drawn == [BLOCK_ROWS] * 4
    assert part.to_local().std() > 0


@pytest.mark.parametrize("master", [torch.float32, torch.float64])
def test_wider_master_weights_start_at_the_same_values(master: torch.dtype) -> None:
    config = described()
    model = Llama(config).to(master)
    initialize(model, config, seed=5)
    assert all(torch.equal(p, q.to(master)) for p, q in zip(model.parameters(), whole().parameters(), strict=True))
    assert digest(model) == digest(whole())
