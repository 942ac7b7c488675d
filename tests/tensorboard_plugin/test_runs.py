from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import trace_runs
from torchlayout.tensorboard_plugin import runs
from torchlayout.tensorboard_plugin.runs import Finder, roots, search


def names(folder: Path) -> list[str]:
    return sorted(search([("", folder)]).runs)


def touched(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).touch()
    return folder


def test_a_logdir_is_a_run_a_folder_of_runs_or_a_study(tmp_path: Path) -> None:
    study = trace_runs.study(tmp_path / "studies" / "mine", ("fsdp2", "tp2"), repeats=2)
    assert names(study / "fsdp2" / "repeat_1") == ["repeat_1"]
    assert names(study) == ["fsdp2/repeat_1", "fsdp2/repeat_2", "tp2/repeat_1", "tp2/repeat_2"]
    assert names(tmp_path) == [f"studies/mine/{name}" for name in names(study)]
    assert {run.study for run in search([("", tmp_path)]).runs.values()} == {study}


def test_any_file_that_only_a_run_has_makes_a_run(tmp_path: Path) -> None:
    touched(tmp_path / "facts", "run.json")
    touched(tmp_path / "metrics", "metrics.jsonl")
    touched(tmp_path / "traces_only" / "traces" / "step_3")
    touched(tmp_path / "other_traces" / "traces" / "cuda")
    touched(tmp_path / "label", "config.toml")
    touched(tmp_path / "label" / "repeat_1", "run.json", "config.toml")
    assert names(tmp_path) == ["facts", "label/repeat_1", "metrics", "traces_only"]


def test_what_is_inside_a_run_is_none(tmp_path: Path) -> None:
    run = touched(tmp_path / "a", "run.json")
    touched(run / "saved", "run.json")
    assert names(tmp_path) == ["a"]


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    touched(tmp_path / "elsewhere" / "a", "run.json")
    logdir = touched(tmp_path / "logdir" / "deep")
    (logdir / "up").symlink_to(tmp_path / "logdir")
    (logdir / "linked").symlink_to(tmp_path / "elsewhere")
    (logdir / "gone").symlink_to(tmp_path / "nothing")
    assert names(tmp_path / "logdir") == ["deep/linked/a"]


def test_huge_trees_are_cut_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        touched(tmp_path / f"run_{number:02}", "run.json")
    monkeypatch.setattr(runs, "MOST_RUNS", 7)
    found = search([("", tmp_path)])
    assert len(found.runs) == 7
    assert found.notes == ["only the first 7 runs are shown; give a folder with fewer to --logdir"]
    monkeypatch.setattr(runs, "MOST_FOLDERS", 5)
    found = search([("", tmp_path)])
    assert sorted(found.runs) == ["run_00", "run_01", "run_02", "run_03"]
    assert "only the first 5 folders were searched" in found.notes[0]


def test_names_that_are_no_text_and_names_that_collide_stay_apart(tmp_path: Path) -> None:
    for name in (b"bad\xff", b"bad\xfe"):
        folder = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
        touched(folder, "run.json")
    assert names(tmp_path) == ["bad\ufffd", "bad\ufffd (2)"]
    assert len({run.path for run in search([("", tmp_path)]).runs.values()}) == 2


def test_windows_are_in_the_order_of_their_steps_and_nothing_else_has_a_path(tmp_path: Path) -> None:
    for name in ("step_10", "step_9", "step_x", "other"):
        (tmp_path / "traces" / name).mkdir(parents=True)
    run = runs.Run("r", tmp_path)
    assert run.windows == ["step_9", "step_10"]
    assert run.window("step_9") == tmp_path / "traces" / "step_9"
    for name in ("step_11", "..", "", "other", "../traces/step_9", "step_9/", "step_9\0"):
        assert run.window(name) is None


@pytest.mark.parametrize(
    ("logdir", "spec", "expected"),
    [
        ("/x", None, [("", Path("/x"))]),
        ("", "a:/x,b:/y", [("a/", Path("/x")), ("b/", Path("/y"))]),
        ("", "/x, /y", [("", Path("/x")), ("", Path("/y"))]),
        ("", "", []),
        (None, None, []),
    ],
)
def test_the_folders_are_those_that_tensorboard_was_given(
    logdir: str | None, spec: str | None, expected: list[tuple[str, Path]]
) -> None:
    assert roots(logdir, spec) == expected


def test_whether_there_is_a_run_is_found_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = Finder([("", tmp_path)])
    assert not finder.any()
    touched(tmp_path / "a", "run.json")
    assert not finder.any(), "asked at each reload, it does not search each time"
    monkeypatch.setattr(runs, "SECONDS_KNOWN", -1.0)
    assert finder.any()
    assert list(finder.search().runs) == ["a"]


def test_a_logdir_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    assert names(tmp_path / "nothing") == []
    assert not Finder([("", Path("gs://bucket/runs"))]).any()
