"""A checkpoint as a folder that transformers, and what reads its format, loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from torchlayout.checkpoint.find import Report, quiet
from torchlayout.checkpoint.folder import Checkpoint, sync_directory
from torchlayout.checkpoint.huggingface.names import CONFIG, INDEX, SINGLE, TOKENIZER, TOKENIZER_CONFIG, listed, names
from torchlayout.checkpoint.huggingface.stream import in_groups, reported
from torchlayout.checkpoint.index import StoredTensor
from torchlayout.checkpoint.tensors import DTYPES, Entry, MappedFiles, write_file
from torchlayout.config import ModelConfig
from torchlayout.errors import InputError
from torchlayout.files import write_atomically
from torchlayout.model.count import shapes

Format = Literal["fp32", "bf16"]
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
SHARD_BYTES = 5 * 2**30
CONTEXT = 2048
"""Sequence length that config.json names where the checkpoint knows none: the default of transformers."""


def export_model(
    checkpoint: Checkpoint,
    out: Path,
    *,
    dtype: Format = "fp32",
    shard_bytes: int = SHARD_BYTES,
    tokenizer: Path | None = None,
    report: Report = quiet,
) -> list[str]:
    """Write the model of a verified checkpoint to a new folder; the names of its files.

    shard_bytes: a file of weights is no larger, unless a single tensor is. Raises InputError where the folder is
    taken or cannot be written, or the checkpoint lacks a part of its model.
    """
    model = ModelConfig.model_validate(checkpoint.index.state["model"])
    vocabulary = model.vocab_size
    if tokenizer is not None:
        tokenizer = tokenizer / TOKENIZER if tokenizer.is_dir() else tokenizer
        _check_tokenizer(tokenizer, vocabulary)
    entries = _entries(checkpoint, model, FORMATS[dtype])
    with _new_folder(out) as folder:
        _write_weights(folder, in_groups(reported(entries, report), shard_bytes))
        config = _config(checkpoint.index.state, model, dtype)
        write_atomically(folder / CONFIG, json.dumps(config, indent=2) + "\n")
        if tokenizer is not None:
            _copy_tokenizer(tokenizer, folder)
        return sorted(path.name for path in folder.iterdir())


def _entries(checkpoint: Checkpoint, model: ModelConfig, dtype: torch.dtype) -> list[Entry]:
    stored = checkpoint.index.tensors
    expected = shapes(model)
    wrong = [name for name, shape in expected.items() if getattr(stored.get(f"model.{name}"), "shape", None) != shape]
    if wrong:
        raise InputError(f"{checkpoint.path} lacks parameters of its own model: {listed(wrong)}")
    return [
        Entry(key, dtype, expected[name], partial(_converted, checkpoint.path, stored[f"model.{name}"], dtype))
        for name, key in names(model).items()
    ]


def _converted(folder: Path, stored: StoredTensor, dtype: torch.dtype) -> Tensor:
    return whole_tensor(folder, stored).to(dtype)


def whole_tensor(folder: Path, stored: StoredTensor) -> Tensor:
    """A tensor put together from its chunks; it must not be written to."""
    files = MappedFiles(folder)  # one for each tensor: what it has read counts as this process's memory while it lives
    if len(stored.chunks) == 1:
        return files.read(stored.chunks[0], stored.dtype)
    whole = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
    for chunk in stored.chunks:
        box = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.shape, strict=True))
        whole[box].copy_(files.read(chunk, stored.dtype))
    return whole


def _write_weights(folder: Path, shards: list[list[Entry]]) -> None:
    metadata = {"format": "pt"}  # transformers refuses a file without it
    if len(shards) == 1:
        write_file(folder / SINGLE, shards[0], metadata)
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        path = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(path, shard, metadata)
        places |= {entry.key: path.name for entry in shard}
    total = sum(entry.bytes for shard in shards for entry in shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    write_atomically(folder / INDEX, json.dumps(index, indent=2) + "\n")


def _config(state: dict[str, Any], model: ModelConfig, dtype: Format) -> dict[str, Any]:
    """config.json with the spelling of the rotary settings that transformers 4 and 5 both read."""
    fixed = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": {"fp32": "float32", "bf16": "bfloat16"}[dtype],
    }
    return fixed | model.model_dump(mode="json") | _surroundings(state)


def _surroundings(state: dict[str, Any]) -> dict[str, Any]:
    """What config.json says beside the model: the length it was trained on, and tokens that mean something."""
    facts = {
        "max_position_embeddings": CONTEXT,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if "huggingface" in state:  # imported and not trained since
        facts |= state["huggingface"]
    else:
        facts |= {"max_position_embeddings": state["config"]["data"]["sequence_length"], "eos_token_id": _eos(state)}
    return facts


def _eos(state: dict[str, Any]) -> int | None:
    """The end-of-document token, where the corpus that was trained on is still there to be asked."""
    from torchlayout.data.corpus import Manifest

    try:
        manifest = Manifest.read(Path(state["config"]["data"]["path"]))
    except InputError:
        return None
    return manifest.eos if manifest.sha256 == state["order"]["corpus"] else None


def _check_tokenizer(path: Path, vocabulary: int) -> None:
    from torchlayout.data.tokenizer import FileTokenizer

    found = FileTokenizer(path, eos_id=0).vocabulary
    if found > vocabulary:
        raise InputError(
            f"--tokenizer {path} has {found:,} ids, the model {vocabulary:,}; give the one it was trained on"
        )


def _copy_tokenizer(path: Path, folder: Path) -> None:
    shutil.copyfile(path, folder / TOKENIZER)
    beside = path.with_name(TOKENIZER_CONFIG)
    if beside.is_file():
        shutil.copyfile(beside, folder / TOKENIZER_CONFIG)
    else:
        # Else transformers would take it for Llama's own, and change how it splits text.
        plain = {"tokenizer_class": "PreTrainedTokenizerFast"}
        write_atomically(folder / TOKENIZER_CONFIG, json.dumps(plain, indent=2) + "\n")


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, which gets the name `out` when the block ends well, and goes when it does not."""
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; name a folder that is new or empty")
    hidden = out.with_name(f".{out.name}.exporting")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        hidden.mkdir(parents=True)
        yield hidden
        sync_directory(hidden)
        hidden.rename(out)
        sync_directory(out.parent)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
