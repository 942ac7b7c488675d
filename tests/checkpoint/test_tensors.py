"""Streamed safetensors files are those of the safetensors library, to the bit."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from torchlayout.checkpoint import Chunk
from torchlayout.checkpoint.tensors import DTYPES, Entry, MappedFiles, write_file

BITS = torch.arange(48, dtype=torch.uint8) * 5


def tensors() -> dict[str, Tensor]:
    """One of each format with every kind of bits (NaNs too), and shapes that are easily forgotten."""
    found = {name: BITS.view(dtype).reshape(2, -1).clone() for name, dtype in DTYPES.items()}
    scalar, empty = torch.tensor(3.0), torch.empty(0, 5, dtype=torch.bfloat16)
    return found | {"scalar": scalar, "empty": empty, "transposed": found["BF16"].t(), "odd": BITS[:7]}


def entries(named: dict[str, Tensor]) -> list[Entry]:
    return [Entry(key, t.dtype, tuple(t.shape), lambda t=t: t) for key, t in named.items()]  # type: ignore[misc]


def same_bits(left: Tensor, right: Tensor) -> bool:
    pair = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*pair)


def test_the_safetensors_library_reads_the_same_bits(tmp_path: Path) -> None:
    named = tensors()
    written = write_file(tmp_path / "a.safetensors", entries(named), {"format": "pt"})
    read = load_file(tmp_path / "a.safetensors")
    assert read.keys() == named.keys()
    assert [key for key in named if not same_bits(named[key], read[key])] == []
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    raw = (tmp_path / "a.safetensors").read_bytes()
    assert (written.bytes, written.sha256) == (len(raw), hashlib.sha256(raw).hexdigest())


def test_every_tensor_is_aligned_and_where_the_spans_say(tmp_path: Path) -> None:
    named = tensors()
    written = write_file(tmp_path / "a.safetensors", entries(named))
    files = MappedFiles(tmp_path)
    names = {dtype: name for name, dtype in DTYPES.items()}
    for key, tensor in named.items():
        start, end = written.spans[key]
        assert (end - start, start % tensor.dtype.itemsize) == (tensor.nbytes, 0)
        chunk = Chunk((0,) * tensor.ndim, tuple(tensor.shape), "a.safetensors", start, end)
        assert same_bits(files.read(chunk, names[tensor.dtype]), tensor)


def test_a_file_without_tensors_is_a_file(tmp_path: Path) -> None:
    write_file(tmp_path / "none.safetensors", [])
    assert load_file(tmp_path / "none.safetensors") == {}


def test_what_is_read_never_reaches_the_file(tmp_path: Path) -> None:
    written = write_file(tmp_path / "a.safetensors", entries({"x": torch.ones(4)}))
    chunk = Chunk((0,), (4,), "a.safetensors", *written.spans["x"])
    MappedFiles(tmp_path).read(chunk, "F32").zero_()
    assert torch.equal(load_file(tmp_path / "a.safetensors")["x"], torch.ones(4))


def test_a_tensor_that_is_not_as_announced_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        write_file(tmp_path / "a.safetensors", [Entry("x", torch.float32, (4,), lambda: torch.ones(5))])


def test_files_of_the_safetensors_library_are_read_as_chunks(tmp_path: Path) -> None:
    save_file({"x": torch.arange(6.0).reshape(2, 3)}, tmp_path / "theirs.safetensors")
    raw = (tmp_path / "theirs.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    read = MappedFiles(tmp_path).read(Chunk((0, 0), (2, 3), "theirs.safetensors", start, len(raw)), "F32")
    assert torch.equal(read, torch.arange(6.0).reshape(2, 3))
