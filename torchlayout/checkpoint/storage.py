"""Storage of torch.distributed.checkpoint without pickle: a safetensors file a rank, and one JSON index.

torch plans who writes what (each element once, whatever is replicated) and who reads which part of which chunk (any
layout from any other); here are the files. Torch's own FileSystemWriter pickles its metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from torchlayout.checkpoint.folder import Checkpoint, Checkpoints, commit
from torchlayout.checkpoint.index import Chunk, Index, StoredTensor
from torchlayout.checkpoint.tensors import DTYPES, NAMES, Entry, MappedFiles, Written, write_file


@dataclass(frozen=True)
class _Place:
    chunk: Chunk
    file_bytes: int
    file_sha256: str


class FolderWriter(StorageWriter):
    """Writes and commits one checkpoint of a run; the coordinator's disk and the ranks' must be the same.

    state: what goes into the index beside the tensors. keep: how many checkpoints stand afterwards. note: on the
    coordinator, what went wrong after the checkpoint was safe.
    """

    def __init__(self, checkpoints: Checkpoints, state: dict[str, Any], keep: int) -> None:
        self.checkpoints, self.state, self.keep = checkpoints, state, keep
        self.step = int(state["step"])
        self.note: str | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return checkpoint_id is None

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between saves."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The coordinator makes the folder; the others get their plan, and write, after that."""
        if is_coordinator:
            self.checkpoints.begin(self.step)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        folder = self.checkpoints.unfinished(self.step)
        return [replace(plan, storage_data=folder / f"rank_{rank:05}.safetensors") for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file; raises OSError where the disk is full."""
        results: list[WriteResult] = []
        if plan.items:
            entries = {_key(item): _entry(item, planner) for item in plan.items}
            written = write_file(cast(Path, plan.storage_data), entries.values())
            results = [_result(item, written) for item in plan.items]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, once every rank has written: index, COMMITTED, and the final name."""
        places: dict[str, list[Chunk]] = {}
        files: dict[str, dict[str, Any]] = {}
        for result in (result for of_rank in results for result in of_rank):
            place: _Place = result.storage_data
            places.setdefault(result.index.fqn, []).append(place.chunk)
            files[place.chunk.file] = {"bytes": place.file_bytes, "sha256": place.file_sha256}
        tensors = {}
        for name, facts in metadata.state_dict_metadata.items():
            assert isinstance(facts, TensorStorageMetadata)
            chunks = tuple(sorted(places[name], key=lambda chunk: chunk.offsets))
            tensors[name] = StoredTensor(NAMES[facts.properties.dtype], tuple(facts.size), chunks)
        folder = self.checkpoints.unfinished(self.step)
        commit(folder, Index(self.state, tensors), files)
        self.checkpoints.finish(folder, self.step)
        try:
            self.checkpoints.prune(self.step, self.keep)
        except OSError as error:
            self.note = f"an older checkpoint could not be removed: {error.strerror}: {error.filename}"


class FolderReader(StorageReader):
    """Reads a checkpoint that was verified before."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.chunks: dict[MetadataIndex, tuple[Chunk, str]] = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return checkpoint_id is None

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between loads."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the index says, in torch's words."""
        return Metadata({name: _metadata(tensor) for name, tensor in self.checkpoint.index.tensors.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        for name, tensor in self.checkpoint.index.tensors.items():
            for chunk in tensor.chunks:
                self.chunks[MetadataIndex(name, torch.Size(chunk.offsets))] = chunk, tensor.dtype

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy every part that this rank needs to its place."""
        files = MappedFiles(self.checkpoint.path)
        for item in plan.items:
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._part(files, item))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _part(self, files: MappedFiles, item: ReadItem) -> Tensor:
        chunk, dtype = self.chunks[item.storage_index]
        part = files.read(chunk, dtype)
        for axis, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            part = part.narrow(axis, offset, length)
        return part


def _offsets(item: WriteItem) -> Sequence[int]:
    assert item.tensor_data is not None
    return tuple(item.tensor_data.chunk.offsets)


def _key(item: WriteItem) -> str:
    return f"{item.index.fqn}@{','.join(map(str, _offsets(item)))}"


def _entry(item: WriteItem, planner: SavePlanner) -> Entry:
    assert item.tensor_data is not None
    shape = tuple(item.tensor_data.chunk.sizes)
    return Entry(_key(item), item.tensor_data.properties.dtype, shape, lambda: cast(Tensor, planner.resolve_data(item)))


def _result(item: WriteItem, written: Written) -> WriteResult:
    assert item.tensor_data is not None
    start, end = written.spans[_key(item)]
    chunk = Chunk(tuple(_offsets(item)), tuple(item.tensor_data.chunk.sizes), written.name, start, end)
    return WriteResult(item.index, end - start, _Place(chunk, written.bytes, written.sha256))


def _metadata(tensor: StoredTensor) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        TensorProperties(dtype=DTYPES[tensor.dtype]),
        torch.Size(tensor.shape),
        [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.shape)) for chunk in tensor.chunks],
    )
