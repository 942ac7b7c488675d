"""Traces of runs of this project, in which what costs time is known because it was planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.launch import torchrun
from torchlayout.layout import Layout
from torchlayout.schedule import Action, actions, timeline
from torchlayout.trace.analyse import analyse
from train.profiled import raw

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

FIRST_STEP, STEPS = 2, 3
NAP = 0.05
PIPELINES = ["pp2+gpipe+mb2", "pp2+mb2", "pp2+interleaved2+mb2", "pp2+zerobubble2+mb2"]
WIDE = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
PLANTED: list[dict[str, Any]] = [
    {"name": "straggler", "label": "fsdp2+mb4", "nap": NAP / 2, "slow_rank": 1},
    {"name": "loader", "label": "fsdp2+mb4", "nap": NAP / 10, "slow_loader": 0.3},
    {"name": "collective", "label": "fsdp2+mb2"},
]


@pytest.fixture(scope="module")
def folder(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of all jobs, from one launch of two ranks."""
    folder = tmp_path_factory.mktemp("live")
    jobs = [{"name": label, "label": label, "nap": NAP} for label in PIPELINES] + PLANTED
    for job in jobs:
        config = raw(small_corpus, folder, job["name"], start_step=FIRST_STEP, steps=STEPS)
        config["train"]["steps"] = FIRST_STEP + STEPS - 1
        if job["name"] == "collective":
            config["model"] |= WIDE
        job["config"] = config
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = torchrun(2, str(Path(__file__).parent / "live_ranks.py"), str(folder / "jobs.json"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return folder


def document(folder: Path, name: str) -> dict[str, Any]:
    return analyse(folder / name / "traces" / f"step_{FIRST_STEP}").document


def nominal_seconds(action: Action) -> float:
    """Naps of an action: weight gradients take none, but torch leaves the first stage's whole backward to them."""
    if action.kind == "F":
        return 1.0
    if action.kind == "B":
        return 2.0
    return 2.0 if (action.kind == "W") == (action.stage == 0) else 0.0


def counted_bubble(label: str, micro_batches: int) -> float:
    """The schedule's own count, of stages that are equal."""
    layout = Layout.parse(label)
    played = timeline(actions(layout, micro_batches), nominal_seconds)
    return sum(played.bubble(rank) for rank in range(layout.pipeline)) / layout.pipeline


@pytest.mark.parametrize("label", PIPELINES)
def test_the_measured_bubble_agrees_with_the_schedules_own_count(folder: Path, label: str) -> None:
    window = folder / label / "traces" / f"step_{FIRST_STEP}"
    steps = [analyse(window, step=FIRST_STEP + number).document["pipeline"] for number in range(STEPS)]
    # Whatever else runs on the machine makes some rank wait longer, none shorter.
    least = min(steps, key=lambda found: found["bubble"])
    micro_batches = document(folder, label)["stages"][0]["micro_batches"]
    assert least["bubble"] == pytest.approx(counted_bubble(label, micro_batches), rel=0.15)
    assert least["schedule"] == pytest.approx(least["bubble"], rel=0.15)


@pytest.mark.parametrize("label", [*PIPELINES, *(job["name"] for job in PLANTED)])
def test_shares_sum_to_the_step_on_every_rank(folder: Path, label: str) -> None:
    found = document(folder, label)
    assert [step["step"] for step in found["steps"]] == [*range(FIRST_STEP, FIRST_STEP + STEPS)]
    for step in found["steps"]:
        assert [rank["rank"] for rank in step["ranks"]] == [0, 1]
        for rank in step["ranks"]:
            assert sum(rank["shares"].values()) == pytest.approx(rank["seconds"], rel=1e-9)


def test_a_slow_rank_is_named_as_the_straggler(folder: Path) -> None:
    first = document(folder, "straggler")["causes"][0]
    assert (first["kind"], first["rank"]) == ("straggler", 1)
    assert "rank 1 is a straggler" in first["sentence"]


def test_a_slow_loader_is_named_with_its_rank(folder: Path) -> None:
    first = document(folder, "loader")["causes"][0]
    assert (first["kind"], first["rank"]) == ("data", 0)
    assert first["seconds"] == pytest.approx(0.3, rel=0.2)


def test_collectives_that_nothing_hides_are_named_with_their_axis(folder: Path) -> None:
    first = document(folder, "collective")["causes"][0]
    assert first["kind"] == "communication"
    assert "along fsdp" in first["sentence"]
