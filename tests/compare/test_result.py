from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from harness.studies import study_file
from torchlayout.cli.compare import exit_status
from torchlayout.compare.result import bubble, collect
from torchlayout.compare.runner import run_study
from torchlayout.compare.state import RunRecord, StudyState
from torchlayout.compare.study import Study
from torchlayout.config import Config
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.schedule import actions, timeline

LAYOUTS = ("fsdp2", "tp2", "pp2+mb2", "dp2", "fsdp4")
BEHAVIOUR = {
    "fsdp2": {"speed": 2.0},
    "tp2": {"speed": 1.0, "mfu": 0.4, "hfu": 0.5, "peak_memory_bytes_by_rank": [2**30, 2**29]},
    "pp2+mb2": {"speed": 4.0},
    "dp2": {"do": "oom"},
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that is done; no test changes it."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_BEHAVIOUR", json.dumps(BEHAVIOUR))
        run_study(Study.load(study_file(folder, LAYOUTS, repeats=3)))
    return folder / "studies" / "study"


@pytest.fixture
def study(measured: Path, tmp_path: Path) -> Path:
    """A copy of that study, to be changed."""
    return Path(shutil.copytree(measured, tmp_path / "study"))


def layout(content: dict[str, Any], label: str) -> dict[str, Any]:
    (found,) = [entry for entry in content["layouts"] if entry["label"] == label]
    return dict(found)


def edit(path: Path, change: Any) -> None:
    """Changes every step of a run."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | change(line)) + "\n" for line in lines))


def test_the_content_is_what_the_report_is_made_of(measured: Path) -> None:
    from torchlayout.compare.report.document import Report

    content = collect(measured)
    Report.model_validate(content)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert [entry["label"] for entry in content["layouts"]] == list(LAYOUTS)


def test_figures_of_a_layout_are_those_of_its_steps_after_the_warm_up(measured: Path) -> None:
    found = layout(collect(measured), "tp2")
    # Step k of the fake training takes 1 + 0.01 k seconds; the first is the warm-up of four.
    assert found["step_seconds"] == pytest.approx({"median": 1.03, "low": 1.03, "high": 1.03})
    assert found["tokens_per_second"]["median"] == pytest.approx(64 / 1.03)
    assert (found["mfu"], found["hfu"]) == (0.4, 0.5)
    assert (found["peak_memory_bytes"], found["peak_memory_rank"]) == (2**30, 0)
    assert found["losses"] == [5.0, 2.5, pytest.approx(5 / 3), 1.25]
    assert found["ratio"] == {"value": pytest.approx(2), "low": pytest.approx(2), "high": pytest.approx(2)} | {
        "difference_shown": True
    }
    assert layout(collect(measured), "fsdp2")["peak_memory_rank"] == 1


def test_the_fastest_is_best_and_losers_are_named_with_their_reasons(measured: Path) -> None:
    content = collect(measured)
    assert content["verdict"]["best"] == "tp2"
    assert content["verdict"]["sentence"].startswith("tp2 is fastest: 2.00x (95% interval 2.00-2.00) the speed of")
    assert (content["verdict"]["fair"], content["verdict"]["parity"], content["verdict"]["problems"]) == (
        True,
        True,
        [],
    )
    assert exit_status(content) == 0
    assert layout(content, "dp2")["status"] == "oom"
    assert [repeat["status"] for repeat in layout(content, "dp2")["repeats"]] == ["oom", "skipped", "skipped"]
    assert layout(content, "fsdp4")["status"] == "skipped"
    assert layout(content, "fsdp4")["repeats"] == []


def test_each_layout_has_a_configuration_that_trains_it(measured: Path, tmp_path: Path) -> None:
    for label in LAYOUTS[:3]:
        found = layout(collect(measured), label)
        (tmp_path / "config.toml").write_text(found["config_toml"])
        assert str(Config.load(tmp_path / "config.toml").layout_for(2)) == label
        config = measured / label / "config.toml"
        assert found["torchrun"] == f"torchrun --nproc-per-node 2 -m torchlayout.train {config}"
        assert config.read_text() == found["config_toml"]


@pytest.mark.parametrize(
    ("change", "fair", "parity", "says"),
    [
        (lambda step: {"batch_digest": "0" * 16}, False, True, "batch_digest of step 1 is 0000000000000000"),
        (lambda step: {"loss": step["loss"] * 1.01}, True, False, "the loss of step"),
        (lambda step: {"grad_norm": step["grad_norm"] * 2}, True, False, "the gradient norm of step"),
        (lambda step: {"loss": None}, True, False, "by not a number in one"),
    ],
    ids=["data", "loss", "gradient", "not finite"],
)
def test_a_run_that_differs_fails_the_verdict_and_is_not_called_best(
    change: Any, fair: bool, parity: bool, says: str, study: Path
) -> None:
    edit(study / "tp2" / "repeat_2" / "metrics.jsonl", change)
    content = collect(study)
    assert (content["verdict"]["fair"], content["verdict"]["parity"]) == (fair, parity)
    assert content["verdict"]["best"] == "fsdp2"
    assert exit_status(content) == 1
    (problem,) = content["verdict"]["problems"]
    assert problem.startswith("tp2, repeat 2: ")
    assert says in problem
    json.dumps(content, allow_nan=False)


def test_a_run_without_its_files_has_failed(study: Path) -> None:
    (study / "tp2" / "repeat_1" / "run.json").unlink()
    found = layout(collect(study), "tp2")
    assert found["status"] == "ok"
    assert found["reason"].startswith("1 of 3 runs did not end well: repeat 1: ")
    assert found["repeats"][0]["status"] == "failed"


def test_the_baseline_is_the_first_layout_that_ran(study: Path) -> None:
    shutil.rmtree(study / "fsdp2")
    content = collect(study)
    assert layout(content, "fsdp2")["status"] == "failed"
    assert layout(content, "tp2")["ratio"]["value"] == 1.0
    assert layout(content, "pp2+mb2")["ratio"]["value"] == pytest.approx(0.25)


def test_a_study_in_which_nothing_ran_is_no_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_BEHAVIOUR", json.dumps({"fsdp2": {"do": "crash"}}))
    run_study(Study.load(study_file(tmp_path, ["fsdp2", "fsdp4"])))
    content = collect(tmp_path / "studies" / "study")
    assert exit_status(content) == 1
    assert content["verdict"]["sentence"] == "no layout ran to its end, so there is nothing to compare"


def test_a_folder_that_is_no_study_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no study; give a folder that `torchlayout compare` wrote"):
        collect(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    (tmp_path / "study.toml").write_text("")
    with pytest.raises(InputError):
        collect(tmp_path)


@pytest.mark.parametrize(
    ("label", "batch", "expected"),
    [
        ("fsdp4", 8, None),
        ("pp2", 8, 1 / 9),  # (p - 1) / (m + p - 1)
        ("pp4-fsdp2", 16, 3 / 11),
        ("pp4-fsdp2+interleaved2", 16, 3 / 19),
        ("pp2+mb3", 8, None),
    ],
)
def test_the_bubble_is_that_of_the_schedule(label: str, batch: int, expected: float | None) -> None:
    found = bubble(Layout.parse(label), batch)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_thousand_runs_are_judged_in_seconds(measured: Path, tmp_path: Path) -> None:
    labels = [f"fsdp{2**k}+mb{n}" for k in range(1, 3) for n in range(2, 27)]
    Study.load(study_file(tmp_path, labels, repeats=20)).write(tmp_path / "large" / "study.toml")
    directory = tmp_path / "large"
    runs = [RunRecord(label, repeat, "ok") for label in labels for repeat in range(1, 21)]
    state = StudyState.new(directory / "study.json", runs)
    state.write()
    for run in runs:
        (directory / run.directory).parent.mkdir(exist_ok=True)
        (directory / run.directory).symlink_to(measured / "tp2" / "repeat_1")
    started = time.process_time()
    content = collect(directory)
    assert time.process_time() - started < 8
    assert sum(len(entry["repeats"]) for entry in content["layouts"]) == 1000


@pytest.mark.parametrize(
    "label", ["pp4", "pp4+gpipe", "pp2+interleaved4", "pp4+zerobubble2", "pp2+zbv", "pp4+dualpipev"]
)
def test_many_micro_batches_have_the_bubble_of_the_whole_timeline(label: str) -> None:
    layout = Layout.parse(label)
    count = layout.pipeline * 40
    whole = timeline(actions(layout, count), lambda action: 2.0 if action.kind == "B" else 1.0)
    mean = sum(whole.bubble(rank) for rank in range(layout.pipeline)) / layout.pipeline
    assert bubble(layout, count) == pytest.approx(mean, rel=1e-9)
