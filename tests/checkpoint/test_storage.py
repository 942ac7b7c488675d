"""torch.distributed.checkpoint over our files: what is saved comes back, whatever the chunks; nothing is pickled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from harness.checkpoints import small, state, write
from torchlayout.checkpoint import Checkpoint, Checkpoints
from torchlayout.checkpoint.storage import FolderReader, FolderWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed")


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "model.a": torch.randn(7, 5, generator=generator),
        "model.b": torch.randn(6, generator=generator).bfloat16(),
        "random.cpu": torch.get_rng_state(),
        "wide": torch.randn(3, 2, generator=generator, dtype=torch.float64),
        "empty": torch.empty(0, 4),
    }


def saved(folder: Path, step: int = 3, keep: int = 9) -> Checkpoint:
    writer = FolderWriter(Checkpoints(folder), state(small(), step), keep)
    save(tensors(), storage_writer=writer, planner=DefaultSavePlanner(), no_dist=True)
    return Checkpoint(folder / f"step_{step}")


def loaded(checkpoint: Checkpoint) -> dict[str, Tensor]:
    wanted = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    load(wanted, storage_reader=FolderReader(checkpoint), planner=DefaultLoadPlanner(), no_dist=True)
    return wanted


def test_what_is_saved_comes_back_and_is_committed(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    assert list(checkpoint.faults()) == []
    assert checkpoint.index.state == state(small(), 3)
    read = loaded(checkpoint)
    assert [name for name, tensor in tensors().items() if not torch.equal(read[name], tensor)] == []


def test_the_files_are_safetensors_and_json_and_nothing_else(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    assert sorted(path.name for path in checkpoint.path.iterdir()) == [
        "COMMITTED",
        "index.json",
        "rank_00000.safetensors",
    ]
    stored = load_file(checkpoint.path / "rank_00000.safetensors")
    assert torch.equal(stored["model.b@0"], tensors()["model.b"])


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_what_any_number_of_ranks_wrote_is_put_together(tmp_path: Path, ranks: int) -> None:
    read = loaded(write(Checkpoints(tmp_path), state(small(), 3), tensors(), ranks=ranks))
    assert [name for name, tensor in tensors().items() if not torch.equal(read[name], tensor)] == []


def refuse_to_begin(checkpoints: Checkpoints, step: int) -> Path:
    raise OSError(28, "No space left on device")


def test_older_ones_go_when_a_save_is_finished_and_stand_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 3, keep=1)
    monkeypatch.setattr(Checkpoints, "begin", refuse_to_begin)
    with pytest.raises(CheckpointException):
        saved(tmp_path, 4, keep=1)
    assert list(Checkpoint(tmp_path / "step_3").faults()) == []
    monkeypatch.undo()
    saved(tmp_path, 4, keep=1)
    assert [checkpoint.step for checkpoint in Checkpoints(tmp_path).committed()] == [4]
