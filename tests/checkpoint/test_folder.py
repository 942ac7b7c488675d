"""A checkpoint's folder: committed whole, every fault found, newer ones kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.checkpoints import flip_a_byte, save, small
from torchlayout.checkpoint import Checkpoint, Checkpoints
from torchlayout.checkpoint.find import checked, checkpoints_at, sound_checkpoint
from torchlayout.checkpoint.folder import COMMITTED
from torchlayout.errors import InputError

WEIGHTS = "rank_00001.safetensors"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def edit_committed(folder: Path) -> None:
    """Someone replaces a file and puts its own checksum into the list."""
    flip_a_byte(folder / WEIGHTS)
    committed = json.loads((folder / COMMITTED).read_text())
    committed["files"][WEIGHTS]["sha256"] = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    (folder / COMMITTED).write_text(json.dumps(committed))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no COMMITTED": (lambda folder: (folder / COMMITTED).unlink(), "it has no COMMITTED"),
    "half of COMMITTED": (lambda folder: truncate(folder / COMMITTED), "COMMITTED cannot be read"),
    "COMMITTED of another kind": (lambda folder: (folder / COMMITTED).write_text("[1]"), "COMMITTED cannot be read"),
    "a byte of COMMITTED": (
        lambda folder: (folder / COMMITTED).write_text((folder / COMMITTED).read_text().replace("rank", "Rank", 1)),
        "its own checksum does not fit",
    ),
    "COMMITTED made to fit": (edit_committed, "its own checksum does not fit"),
    "a byte of the weights": (lambda folder: flip_a_byte(folder / WEIGHTS), f"{WEIGHTS} is not what was written"),
    "a byte of the header": (lambda folder: flip_a_byte(folder / WEIGHTS, 12), f"{WEIGHTS} is not what was written"),
    "short weights": (lambda folder: truncate(folder / WEIGHTS), "bytes, "),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
    "a byte of the index": (lambda folder: flip_a_byte(folder / "index.json", 30), "index.json is not what"),
    "no index": (lambda folder: (folder / "index.json").unlink(), "index.json is missing"),
}


def test_a_committed_checkpoint_is_sound_and_says_what_it_holds(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 5, small())
    assert checkpoint.path == tmp_path / "checkpoints" / "step_5"
    assert list(checkpoint.faults()) == []
    assert set(checkpoint.files) == {"index.json", "rank_00000.safetensors", WEIGHTS}
    assert checkpoint.bytes == sum((checkpoint.path / name).stat().st_size for name in checkpoint.files)
    assert (checkpoint.step, checkpoint.index.state["layout"]) == (5, "fsdp2")
    assert not list(checkpoint.path.parent.glob(".*"))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found_and_named(tmp_path: Path, fault: str) -> None:
    path = save(tmp_path, 5, small()).path
    damage, says = FAULTS[fault]
    damage(path)
    found = list(Checkpoint(path).faults())
    assert len(found) == 1
    assert says in found[0]
    assert str(path) in found[0]


@pytest.mark.parametrize("fault", ["a byte of the index", "no index", "no COMMITTED"])
def test_an_index_that_was_not_committed_is_not_read(tmp_path: Path, fault: str) -> None:
    path = save(tmp_path, 5, small()).path
    FAULTS[fault][0](path)
    with pytest.raises(InputError):
        _ = Checkpoint(path).index


def test_an_index_of_another_format_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("torchlayout.checkpoint.index.FORMAT", 2)
        path = save(tmp_path, 5, small()).path
    assert [str(path) in fault and "format 2" in fault for fault in Checkpoint(path).faults()] == [True]
    with pytest.raises(InputError, match=r"no index that this version reads: format 2, this version reads 1"):
        _ = Checkpoint(path).index


def test_ranks_that_divide_the_reading_find_every_fault_once(tmp_path: Path) -> None:
    path = save(tmp_path, 5, small(), ranks=3).path
    for name in ("rank_00000.safetensors", "rank_00002.safetensors"):
        flip_a_byte(path / name)
    by_rank = [list(Checkpoint(path).faults(rank, 5)) for rank in range(5)]
    assert sorted(fault for faults in by_rank for fault in faults) == sorted(Checkpoint(path).faults())
    assert sum(map(len, by_rank)) == 2


def test_a_renamed_checkpoint_knows_its_step(tmp_path: Path) -> None:
    path = save(tmp_path, 5, small()).path
    assert Checkpoint(path.rename(tmp_path / "kept-for-later")).step == 5


@pytest.mark.parametrize(("keep", "left"), [(1, [40]), (2, [30, 40]), (9, [9, 10, 30, 40])])
def test_the_newest_are_kept_by_number_not_by_name(tmp_path: Path, keep: int, left: list[int]) -> None:
    for step in (9, 10, 30, 40):
        save(tmp_path, step, small(), keep=keep)
    assert [checkpoint.step for checkpoint in Checkpoints(tmp_path / "checkpoints").committed()] == left


def test_a_step_that_is_saved_again_takes_the_name_of_the_damaged_one(tmp_path: Path) -> None:
    path = save(tmp_path, 5, small(), keep=1).path
    flip_a_byte(path / WEIGHTS)
    again = save(tmp_path, 5, small(), keep=1)
    assert (again.path, list(again.faults())) == (path, [])
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["step_5", "step_5.damaged"]


def test_what_cut_off_saves_and_removals_left_is_no_checkpoint_and_is_discarded(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    save(tmp_path, 5, small())
    for left in (".step_6.saving", ".step_4.removing"):
        (checkpoints.path / left).mkdir()
        (checkpoints.path / left / WEIGHTS).write_text("half")
    assert [checkpoint.step for checkpoint in checkpoints.committed()] == [5]
    folder = checkpoints.begin(6)
    assert [entry.name for entry in folder.iterdir()] == []
    assert sorted(entry.name for entry in checkpoints.path.iterdir()) == [".step_6.saving", "step_5"]
    checkpoints.discard_unfinished()
    assert [entry.name for entry in checkpoints.path.iterdir()] == ["step_5"]


def test_a_path_is_a_run_or_a_folder_of_checkpoints_or_a_checkpoint(tmp_path: Path) -> None:
    for step in (2, 4):
        save(tmp_path, step, small())
    inner = tmp_path / "checkpoints"
    for path in (tmp_path, inner):
        assert [checkpoint.step for checkpoint in checkpoints_at(path)] == [2, 4]
    assert [checkpoint.path for checkpoint in checkpoints_at(inner / "step_2")] == [inner / "step_2"]
    for path, says in ((tmp_path / "no", "is no folder"), (inner / "step_2" / COMMITTED, "is no folder")):
        with pytest.raises(InputError, match=says):
            checkpoints_at(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no checkpoint"):
        checkpoints_at(tmp_path / "empty")


def test_a_run_stands_for_its_newest_sound_checkpoint(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step, small())
    assert sound_checkpoint(tmp_path)[0].step == 6
    flip_a_byte(tmp_path / "checkpoints" / "step_6" / WEIGHTS)
    checkpoint, skipped = sound_checkpoint(tmp_path)
    assert (checkpoint.step, len(skipped)) == (4, 1)
    assert "step_6" in skipped[0]
    for step in (2, 4):
        (tmp_path / "checkpoints" / f"step_{step}" / COMMITTED).unlink()
    with pytest.raises(InputError) as error:
        sound_checkpoint(tmp_path)
    assert len(error.value.problems) == 3


def test_progress_reaches_all_bytes_whatever_is_damaged(tmp_path: Path) -> None:
    for step in (2, 4):
        save(tmp_path, step, small())
    (tmp_path / "checkpoints" / "step_2" / WEIGHTS).unlink()
    (tmp_path / "checkpoints" / "step_4" / COMMITTED).write_text("{}")
    seen: list[tuple[int, int]] = []
    found = list(checked(checkpoints_at(tmp_path), lambda done, total: seen.append((done, total))))
    assert [len(faults) for _, faults in found] == [1, 1]
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0


def test_a_save_never_goes_for_older_numbers_that_come_after_it_nor_for_what_was_passed_over(tmp_path: Path) -> None:
    for step in (3, 4, 9):
        save(tmp_path, step, small(), keep=9)
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, frozenset({folder / "step_4"}))
    checkpoints.finish(_committed(checkpoints, 6), 6)
    checkpoints.prune(6, keep=1)
    assert [checkpoint.step for checkpoint in checkpoints.committed()] == [4, 6, 9]
    checkpoints.without_passed_over(4).prune(6, keep=1)
    assert [checkpoint.step for checkpoint in checkpoints.committed()] == [6, 9]


def test_links_and_files_of_others_are_left_alone(tmp_path: Path) -> None:
    archived = save(tmp_path / "archive", 1, small(), keep=1).path
    run = tmp_path / "run" / "checkpoints"
    run.mkdir(parents=True)
    (run / "step_1").symlink_to(archived)
    (run / ".step_note").write_text("mine")
    (run / "step_3").write_text("mine too")
    save(run.parent, 3, small(), keep=1)
    assert sorted(path.name for path in run.iterdir()) == [".step_note", "step_3", "step_3.damaged"]
    assert (run / "step_3.damaged").read_text() == "mine too"
    assert list(Checkpoint(archived).faults()) == []


def test_a_folder_under_the_name_of_another_step_is_damaged(tmp_path: Path) -> None:
    moved = save(tmp_path, 6, small(), keep=1).path.rename(tmp_path / "step_9")
    assert list(Checkpoint(moved).faults()) == [f"{moved} is named step_9 and holds step 6"]


def _committed(checkpoints: Checkpoints, step: int) -> Path:
    elsewhere = save(checkpoints.path.parent / "elsewhere", step, small(), keep=1).path
    return elsewhere.rename(checkpoints.unfinished(step))
