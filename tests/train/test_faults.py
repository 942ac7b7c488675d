"""What can go wrong with checkpoints: one clear sentence, and nothing is lost or started over in silence."""

from __future__ import annotations

import os
import resource
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.command import SmallRun
from torchlayout.checkpoint import Checkpoint, commit


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, small_corpus: Path) -> SmallRun:
    """A run of 4 steps with checkpoints at 2 and 4."""
    small = SmallRun(tmp_path_factory.mktemp("saved"), small_corpus)
    done = small.run(small.line())
    assert (done.returncode, small.steps_on_disk()) == (0, ["step_2", "step_4"]), done.stderr
    return small


@pytest.fixture
def small(saved: SmallRun, tmp_path: Path) -> SmallRun:
    """A copy of it, to be damaged."""
    shutil.copytree(saved.folder / "run", tmp_path / "run")
    return SmallRun(tmp_path, saved.corpus)


def files_of(small: SmallRun) -> dict[str, bytes]:
    paths = (path for path in (small.folder / "run").rglob("*") if path.is_file())
    return {str(path.relative_to(small.folder)): path.read_bytes() for path in paths}


def truncate(folder: Path) -> None:
    with (folder / "rank_00000.safetensors").open("rb+") as file:
        file.truncate(1000)


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / "rank_00000.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "rank_00000.safetensors").write_bytes(content)


def remove_a_file(folder: Path) -> None:
    (folder / "rank_00000.safetensors").unlink()


def never_commit(folder: Path) -> None:
    (folder / "COMMITTED").unlink()


def edit_the_list(folder: Path) -> None:
    committed = folder / "COMMITTED"
    committed.write_text(committed.read_text().replace('"bytes": ', '"bytes": 1'))


DAMAGE = {
    "has 1,000 bytes": truncate,
    "its SHA-256 differs": flip_a_bit,
    "is missing": remove_a_file,
    "it has no COMMITTED": never_commit,
    "its own checksum does not fit": edit_the_list,
}


@pytest.mark.parametrize("says", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(says: str, small: SmallRun) -> None:
    DAMAGE[says](small.directory.checkpoints_path / "step_4")
    done = small.run(small.line(train__steps=6))
    assert done.returncode == 0, done.stderr
    assert f"passed over {small.directory.checkpoints_path / 'step_4'}: " in done.stdout
    assert says in done.stdout
    assert "resumed from " + str(small.directory.checkpoints_path / "step_2") in done.stdout
    assert [record["step"] for record in small.directory.metrics()] == [1, 2, 3, 4, 5, 6]
    assert small.steps_on_disk() == ["step_2", "step_4", "step_4.damaged", "step_6"]


def test_where_none_is_sound_the_run_does_not_start_over(small: SmallRun) -> None:
    flip_a_bit(small.directory.checkpoints_path / "step_4")
    remove_a_file(small.directory.checkpoints_path / "step_2")
    before = files_of(small)
    done = small.run(small.line(train__steps=6))
    assert done.returncode == 2
    assert "is sound" in done.stderr
    assert done.stderr.count("\n") == 1
    assert {name: content for name, content in files_of(small).items() if name != "run/.lock"} == {
        name: content for name, content in before.items() if name != "run/.lock"
    }


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model__num_hidden_layers": 2}, "was written with model.num_hidden_layers = 4, this run has 2"),
        ({"data__sequence_length": 16}, "was written with data.sequence_length = 32, this run has 16"),
        ({"run__seed": 3}, "was written with run.seed = 1234, this run has 3"),
        ({"batch__global_size": 8}, "was written with batch.global_size = 4, this run has 8"),
    ],
    ids=str,
)
def test_a_checkpoint_that_another_run_wrote_is_refused(small: SmallRun, settings: dict[str, Any], says: str) -> None:
    done = small.run(small.line(train__steps=6, **settings))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert says in done.stderr


def test_a_finished_run_has_nothing_to_do(small: SmallRun) -> None:
    before = small.directory.read_run(), small.directory.metrics()
    done = small.run(small.line())
    assert (done.returncode, "nothing to do" in done.stdout) == (0, True), done.stderr
    assert (small.directory.read_run(), small.directory.metrics()) == before


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_full_disk_is_reported_and_older_checkpoints_stand(small: SmallRun, asynchronous: str) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2**20, 2**20))  # bytes in a file
    line = small.line(train__steps=7, checkpoint__asynchronous=asynchronous)
    done = small.run(line, preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    for step in (6, 7):
        assert f"the checkpoint of step {step} was not saved: rank 0: File too large; older ones stand" in done.stdout
    assert "Traceback" not in done.stderr
    assert small.steps_on_disk() == ["step_2", "step_4"]
    assert [record["step"] for record in small.directory.metrics()] == [1, 2, 3, 4, 5, 6, 7]
    assert small.run(line).returncode == 0
    assert small.steps_on_disk() == ["step_4", "step_6", "step_7"]


def test_a_folder_that_cannot_be_written_to_is_reported(tmp_path: Path, small_corpus: Path) -> None:
    small = SmallRun(tmp_path, small_corpus)
    small.directory.path.mkdir()
    small.directory.checkpoints_path.write_text("a file where the folder should be")
    done = small.run(small.line(train__steps=2))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "the checkpoint of step 2 was not saved: rank 0: " in done.stdout
    assert len(small.directory.metrics()) == 2


def test_two_runs_in_one_folder_are_one_too_many(small: SmallRun) -> None:
    first = small.start(small.line(train__steps=100_000, checkpoint__every=100_000))
    try:
        while len(small.directory.metrics()) < 6:
            assert first.poll() is None
            time.sleep(0.05)
        second = small.run(small.line(train__steps=6))
        assert (second.returncode, second.stderr.count("\n")) == (2, 1), second.stderr
        assert "another process is writing to" in second.stderr
    finally:
        first.terminate()
        first.communicate(timeout=60)
    assert first.returncode == 0
    steps = [record["step"] for record in small.directory.metrics()]
    assert steps == list(range(1, len(steps) + 1))


def test_only_the_newest_are_kept(tmp_path: Path, small_corpus: Path) -> None:
    small = SmallRun(tmp_path, small_corpus)
    done = small.run(small.line(train__steps=5, checkpoint__every=1, checkpoint__keep=2))
    assert (done.returncode, small.steps_on_disk()) == (0, ["step_4", "step_5"]), done.stderr


def test_a_run_begins_from_the_checkpoint_that_is_named_and_then_goes_on_from_its_own(
    saved: SmallRun, tmp_path: Path
) -> None:
    small = SmallRun(tmp_path, saved.corpus)
    named = saved.directory.checkpoints_path / "step_2"
    assert small.run(small.line(train__steps=4, checkpoint__resume=named)).returncode == 0
    assert small.directory.read_run()["resumed_from"] == str(named)
    assert [record["step"] for record in small.directory.metrics()] == [3, 4]
    ours, theirs = (run.directory.metrics()[-1] for run in (small, saved))
    assert (ours["loss"], ours["batch_digest"]) == (theirs["loss"], theirs["batch_digest"])
    assert small.run(small.line(train__steps=6, checkpoint__resume=named)).returncode == 0
    assert small.directory.read_run()["resumed_from"] == str(small.directory.checkpoints_path / "step_4")


def test_a_checkpoint_that_is_named_must_be_one(tmp_path: Path, small_corpus: Path) -> None:
    small = SmallRun(tmp_path, small_corpus)
    done = small.run(small.line(checkpoint__resume=tmp_path / "nothing"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"checkpoint.resume = '{tmp_path / 'nothing'}' is no folder" in done.stderr
    done = small.run(small.line(checkpoint__resume=small_corpus))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "is no committed checkpoint" in done.stderr


def test_a_run_that_must_not_be_continued_is_not_overwritten(small: SmallRun) -> None:
    done = small.run(small.line(train__steps=6, checkpoint__resume="never"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert 'checkpoint.resume = "never"' in done.stderr
    assert small.steps_on_disk() == ["step_2", "step_4"]


def test_a_run_without_checkpoints_is_not_overwritten(tmp_path: Path, small_corpus: Path) -> None:
    small = SmallRun(tmp_path, small_corpus)
    assert small.run(small.line(checkpoint__every=0)).returncode == 0
    before = small.directory.metrics()
    done = small.run(small.line(checkpoint__every=0))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "already holds a run" in done.stderr
    assert small.directory.metrics() == before


def test_what_is_refused_leaves_everything_as_it_is(small: SmallRun) -> None:
    flip_a_bit(small.directory.checkpoints_path / "step_4")
    before = files_of(small)
    assert small.run(small.line(train__steps=6, run__seed=3)).returncode == 2
    assert files_of(small) == before


def test_another_loss_mask_is_another_run(small: SmallRun) -> None:
    done = small.run(small.line(train__steps=6, data__within_documents="true"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "data.within_documents = False, this run has True" in done.stderr


def test_where_a_run_has_its_own_checkpoints_the_named_one_may_be_gone(small: SmallRun) -> None:
    done = small.run(small.line(train__steps=5, checkpoint__resume=small.folder / "gone"))
    assert done.returncode == 0, done.stderr
    assert small.directory.read_run()["resumed_from"] == str(small.directory.checkpoints_path / "step_4")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "is at step 4 of train.steps = 4; legal: 5 or more"),
        ({"model__num_hidden_layers": 2}, "was written with model.num_hidden_layers"),
    ],
    ids=str,
)
def test_a_named_checkpoint_with_no_steps_left_is_refused(
    saved: SmallRun, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    small = SmallRun(tmp_path, saved.corpus)
    done = small.run(small.line(checkpoint__resume=saved.directory.path, **settings))
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_a_checkpoint_that_lacks_a_chunk_is_not_continued(small: SmallRun) -> None:
    newest = Checkpoint(small.directory.checkpoints_path / "step_4")
    index, files = newest.index, dict(newest.files)
    name, tensor = next(iter(index.tensors.items()))
    tensors = index.tensors | {name: replace(tensor, chunks=())}
    files.pop("index.json")
    commit(newest.path, replace(index, tensors=tensors), files)
    done = small.run(small.line(train__steps=5))
    assert f"passed over {newest.path}" in done.stdout
    assert f"the chunks of {name} are not the whole" in done.stdout
    assert done.returncode == 0


def test_a_name_that_is_too_long_is_one_sentence(tmp_path: Path, small_corpus: Path) -> None:
    small = SmallRun(tmp_path, small_corpus)
    done = small.run(small.line(checkpoint__resume="a" * 300))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "File name too long" in done.stderr


def test_ranks_that_torchrun_started_anew_continue_their_run_also_under_never(small: SmallRun) -> None:
    restarted = os.environ | {"TORCHELASTIC_RESTART_COUNT": "1", "OMP_NUM_THREADS": "1"}
    done = small.run(small.line(train__steps=6, checkpoint__resume="never"), env=restarted)
    assert done.returncode == 0, done.stderr
    assert small.directory.read_run()["resumed_from"] == str(small.directory.checkpoints_path / "step_4")
