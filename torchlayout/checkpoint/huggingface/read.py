"""A folder with a Hugging Face Llama as a checkpoint of step 0, which a run continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from torchlayout.checkpoint.find import Report, quiet
from torchlayout.checkpoint.folder import Checkpoint, Checkpoints, commit
from torchlayout.checkpoint.huggingface.names import CONFIG, EMBEDDING, HEAD, INDEX, SINGLE, listed, names
from torchlayout.checkpoint.huggingface.stream import in_groups, reported
from torchlayout.checkpoint.index import Chunk, Index, StoredTensor
from torchlayout.checkpoint.tensors import Entry, write_file
from torchlayout.config import ModelConfig
from torchlayout.config.model import read_huggingface
from torchlayout.errors import InputError
from torchlayout.files import read_text
from torchlayout.layout import Layout
from torchlayout.model.count import shapes
from torchlayout.tables import sentences

FILE_BYTES = 4 * 2**30
"""Size of a file of the checkpoint: several, so that ranks share the work of verifying."""
PICKLES = ("*.bin", "*.pth", "*.pt", "*.ckpt")
READABLE = ("F64", "F32", "F16", "BF16")
KEPT = ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
"""What config.json says that is no part of the model, and goes into an export again."""


@dataclass(frozen=True)
class Found:
    """A tensor in a file; dtype as safetensors spells it."""

    file: Path
    key: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        """The tensor; opened anew each time, so that what was read of the file does not stay in memory."""
        with safe_open(self.file, "pt") as file:
            tensor: Tensor = file.get_tensor(self.key)
        return tensor

    def equals(self, other: Found) -> bool:
        """Whether both are the same numbers in the same format; of formats that are refused anyway nothing is read."""
        same_kind = (self.dtype, self.shape) == (other.dtype, other.shape)
        return same_kind and (self.dtype not in READABLE or torch.equal(self.read(), other.read()))

    def masters(self) -> Tensor:
        """The tensor in the format of master weights."""
        return self.read().to(torch.float32)


def import_model(source: Path, out: Path, report: Report = quiet) -> Checkpoint:
    """Write the weights, as fp32, to OUT/step_0.

    Raises InputError where the folder holds no such Llama or not all of it, or OUT is taken or cannot be written.
    """
    try:
        model = ModelConfig.model_validate(read_huggingface(source))
    except ValidationError as error:
        raise InputError(*(f"{source / CONFIG}: {text}" for text in sentences(error, "model", ModelConfig))) from error
    expected, found = shapes(model), _weights(source, model)
    entries = [Entry(f"model.{name}", torch.float32, expected[name], found[name].masters) for name in expected]
    checkpoints = Checkpoints(out)
    if out.exists() and (not out.is_dir() or any(not path.name.startswith(".step_") for path in out.iterdir())):
        raise InputError(f"{out} is there already; name a folder that is new or empty")
    try:
        folder = checkpoints.begin(0)
        try:
            _write(folder, _state(source, model), reported(entries, report))
            return checkpoints.finish(folder, 0)
        finally:
            checkpoints.discard_unfinished()
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from error


def _weights(source: Path, model: ModelConfig) -> dict[str, Found]:
    """Where each parameter is, by its name here; raises InputError where one is missing, or not as the model has it."""
    stored = _stored(source)
    if model.tie_word_embeddings and HEAD in stored:
        head = stored.pop(HEAD)
        embedding = stored.setdefault(EMBEDDING, head)  # as in transformers, either of the two may be there
        if not head.equals(embedding):
            raise InputError(
                f"{source / CONFIG} has tie_word_embeddings = true, but {HEAD} differs from {EMBEDDING}; "
                "set it to false there to keep both"
            )
    named, expected = names(model), shapes(model)
    missing = [name for name in named.values() if name not in stored]
    unexpected = sorted(stored.keys() - named.values())
    found = {name: stored[key] for name, key in named.items() if key in stored}
    misshapen = [
        f"{tensor.key} {list(tensor.shape)} instead of {list(expected[name])}"
        for name, tensor in found.items()
        if tensor.shape != expected[name]
    ]
    unreadable = [f"{tensor.key} {tensor.dtype}" for tensor in found.values() if tensor.dtype not in READABLE]
    advice = f"; if it shares the embedding, set tie_word_embeddings to true in {CONFIG}" if missing == [HEAD] else ""
    faults = {
        "lacks ": (missing, advice),
        "has tensors that are no part of this Llama: ": (unexpected, ""),
        "has tensors of another shape than its config.json says: ": (misshapen, ""),
        "has tensors that are no plain floating-point numbers: ": (unreadable, f"; legal: {', '.join(READABLE)}"),
    }
    if problems := [f"{source} {text}{listed(those)}{rest}" for text, (those, rest) in faults.items() if those]:
        raise InputError(*problems)
    return found


def _stored(source: Path) -> dict[str, Found]:
    """Every tensor of the folder's files but the rotary frequencies, which old versions of transformers stored."""
    stored: dict[str, Found] = {}
    for path in _files(source):
        for tensor in _tensors_of(path):
            if tensor.key in stored:
                raise InputError(f"{source} has {tensor.key} twice: in {stored[tensor.key].file.name} and {path.name}")
            if not tensor.key.endswith("rotary_emb.inv_freq"):
                stored[tensor.key] = tensor
    return stored


def _tensors_of(path: Path) -> Iterator[Found]:
    try:
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 (it is no mapping)
                part = file.get_slice(key)
                yield Found(path, key, part.get_dtype(), tuple(part.get_shape()))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is no safetensors file that can be read: {error}") from error


def _files(source: Path) -> list[Path]:
    if (source / SINGLE).exists():
        return [source / SINGLE]
    index = source / INDEX
    if index.exists():
        try:
            files = sorted({str(name) for name in json.loads(read_text(index))["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{index} is no index of safetensors files: it needs a table weight_map") from error
        absent = [name for name in files if name != Path(name).name or not (source / name).is_file()]
        if absent:
            raise InputError(f"{index} names files that are not beside it: {listed(absent)}")
        return [source / name for name in files]
    pickles = sorted(path.name for pattern in PICKLES for path in source.glob(pattern))
    if pickles:
        raise InputError(
            f"{source} has its weights in pickles ({listed(pickles)}), which can run code and are never opened here; "
            "save it as safetensors first, as save_pretrained of transformers does"
        )
    raise InputError(f"{source} has neither {SINGLE} nor {INDEX}; give the folder of a model saved as safetensors")


def _write(folder: Path, state: dict[str, Any], entries: list[Entry]) -> None:
    files: dict[str, dict[str, Any]] = {}
    tensors: dict[str, StoredTensor] = {}
    for number, group in enumerate(in_groups(entries, FILE_BYTES)):
        written = write_file(folder / f"part_{number:05}.safetensors", group)
        files[written.name] = {"bytes": written.bytes, "sha256": written.sha256}
        for entry in group:
            chunk = Chunk((0,) * len(entry.shape), entry.shape, written.name, *written.spans[entry.key])
            tensors[entry.key] = StoredTensor("F32", entry.shape, (chunk,))
    commit(folder, Index(state, tensors), files)


def _state(source: Path, model: ModelConfig) -> dict[str, Any]:
    """As train/state.py has it, of a run that has done nothing yet; `huggingface`: what an export needs again."""
    raw = json.loads(read_text(source / CONFIG))
    layout = Layout()
    return {
        "step": 0,
        "data": None,
        "order": None,
        "optimizer_steps": 0,
        "skipped_in_a_row": 0,
        "layout": str(layout),
        "world": layout.world,
        "model": model.model_dump(mode="json"),
        "config": {"model": model.model_dump(exclude_none=True)},
        "huggingface": {key: raw[key] for key in KEPT if raw.get(key) is not None},
    }
