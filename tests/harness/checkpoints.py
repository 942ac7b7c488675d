"""Checkpoints of small models as several ranks would have written them, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchlayout.checkpoint import Checkpoint, Checkpoints, Chunk, Index, StoredTensor, commit
from torchlayout.checkpoint.tensors import NAMES, Entry, write_file
from torchlayout.config import ModelConfig
from torchlayout.model.initialize import initialize
from torchlayout.model.llama import Llama

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "grouped-query": {},
    "tied": {"tie_word_embeddings": True},
    "multi-head": {"num_key_value_heads": 4, "rope_theta": 500000.0, "rms_norm_eps": 1e-6},
    "llama3-scaling": {"rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING},
    "wide-heads": {"head_dim": 16},
}


def small(**changes: object) -> ModelConfig:
    return ModelConfig.model_validate(SMALL | changes)


def llama(model: ModelConfig, seed: int = 3) -> Llama:
    """A model whose norms are no ones either."""
    built = Llama(model)
    initialize(built, model, seed)
    for parameter in built.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.1, generator=torch.Generator().manual_seed(seed))
    return built


def state(model: ModelConfig, step: int, **changes: Any) -> dict[str, Any]:
    """What train/state.py puts into the index beside the tensors."""
    return {
        "step": step,
        "data": {"seed": 7, "samples_consumed": step * 8},
        "order": {"corpus": "0" * 64, "sequence_length": 16, "shuffle": True, "evaluation_fraction": 0.0},
        "optimizer_steps": step,
        "skipped_in_a_row": 0,
        "layout": "fsdp2",
        "world": 2,
        "model": model.model_dump(mode="json"),
        "config": {"model": model.model_dump(exclude_none=True), "data": {"path": "nowhere", "sequence_length": 16}},
    } | changes


def save(run: Path, step: int, model: ModelConfig, *, keep: int = 100, ranks: int = 2, **changes: Any) -> Checkpoint:
    """Save a small model as step `step` of a run; each of the ranks wrote some rows of every tensor."""
    tensors = {f"model.{name}": parameter.detach() for name, parameter in llama(model).named_parameters()}
    tensors |= {f"optimizer.exp_avg.{name.removeprefix('model.')}": tensor / 10 for name, tensor in tensors.items()}
    return write(Checkpoints(run / "checkpoints"), state(model, step, **changes), tensors, ranks=ranks, keep=keep)


def write(
    checkpoints: Checkpoints, state: dict[str, Any], tensors: dict[str, Tensor], *, ranks: int = 2, keep: int = 100
) -> Checkpoint:
    """Commit tensors that `ranks` ranks hold a share of the rows each."""
    folder, step = checkpoints.begin(state["step"]), state["step"]
    files: dict[str, dict[str, Any]] = {}
    chunks: dict[str, list[Chunk]] = {name: [] for name in tensors}
    for rank in range(ranks):
        parts = {name: _part(tensor, rank, ranks) for name, tensor in tensors.items()}
        entries = [Entry(name, p.dtype, tuple(p.shape), lambda p=p: p) for name, (_, p) in parts.items()]  # type: ignore[misc]
        written = write_file(folder / f"rank_{rank:05}.safetensors", entries)
        files[written.name] = {"bytes": written.bytes, "sha256": written.sha256}
        for name, (first, part) in parts.items():
            offsets = (first, *(0 for _ in part.shape[1:]))
            chunks[name].append(Chunk(offsets, tuple(part.shape), written.name, *written.spans[name]))
    stored = {name: StoredTensor(NAMES[t.dtype], tuple(t.shape), tuple(chunks[name])) for name, t in tensors.items()}
    commit(folder, Index(state, stored), files)
    checkpoint = checkpoints.finish(folder, step)
    checkpoints.prune(step, keep)
    return checkpoint


def flip_a_byte(path: Path, at: int = -1) -> None:
    """Damage a file without changing its size."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def _part(tensor: Tensor, rank: int, ranks: int) -> tuple[int, Tensor]:
    first, end = (len(tensor) * edge // ranks for edge in (rank, rank + 1))
    return first, tensor[first:end]
