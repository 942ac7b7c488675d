from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.launch import torchrun
from torchlayout.layout import Layout
from torchlayout.schedule import Action, actions
from torchlayout.trace.ranges import Range
from train import profiler_ranks
from train.profiled import GLOBAL_BATCH, STEPS, ranges_by_rank, raw, traces

PROFILED = 2
SCHEDULES = ["gpipe", "1f1b", "interleaved2", "looped2", "zerobubble2", "zbv", "dualpipev"]
PIPELINES = [f"pp2+{schedule}+mb2" for schedule in SCHEDULES]
BESIDE = {"fsdp1+mb4": 1, "fsdp2+mb2": 2}
COMPARED = ["pp2+1f1b+mb2", "pp2+zerobubble2+mb2", "pp2+dualpipev+mb2", *BESIDE]
AXES = {"pp2-tp2": {"pp": 2, "tp": 2}, "dp2-fsdp2": {"dp": 2, "shard": 2}, "fsdp2-cp2": {"fsdp": 2, "cp": 2}}
CHOSEN = [1, 3]
ONCE = ["data", "optimizer", "evaluation"]
TWICE = ["exchange", "clip"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiled")


@pytest.fixture(scope="module")
def outcomes(small_corpus: Path, folder: Path) -> dict[str, Any]:
    """What every layout came to with and without a profile, one launch for each number of ranks."""
    window = {"start_step": PROFILED, "steps": 1}
    jobs = []
    for label in (*PIPELINES, *BESIDE):
        jobs.append({"name": label, "config": raw(small_corpus, folder, label, memory=label in BESIDE, **window)})
    jobs += [{"name": f"plain {label}", "config": raw(small_corpus, folder, label)} for label in COMPARED]
    jobs += [{"name": label, "config": raw(small_corpus, folder, label, ranks=CHOSEN, **window)} for label in AXES]
    jobs = [job | {"label": job["name"].split()[-1]} for job in jobs]
    together: dict[str, Any] = {}
    for ranks in (1, 2, 4):
        own = [job for job in jobs if Layout.parse(job["label"]).world == ranks]
        jobs_file, results_file = folder / f"jobs-{ranks}.json", folder / f"results-{ranks}.pt"
        jobs_file.write_text(json.dumps(own))
        if ranks == 1:
            profiler_ranks.main(str(jobs_file), str(results_file))
        else:
            done = torchrun(ranks, str(Path(profiler_ranks.__file__)), str(jobs_file), str(results_file))
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        together |= torch.load(results_file, weights_only=False)
    return together


def marked_actions(ranges: list[Range]) -> list[Action]:
    """What the ranges say was done, as a schedule's actions."""
    split = {(r.stage, r.micro_batch) for r in ranges if r.phase == "weight"}
    kind = {"forward": "F", "weight": "W", "backward": "B"}
    return [
        Action(
            "I" if r.phase == "backward" and (r.stage, r.micro_batch) in split else kind[r.phase],  # type: ignore[arg-type]
            r.stage,  # type: ignore[arg-type]
            r.micro_batch,  # type: ignore[arg-type]
        )
        for r in ranges
        if r.phase in kind
    ]


@pytest.mark.parametrize("label", PIPELINES)
def test_every_action_of_a_schedule_is_marked_once_and_in_its_order(
    label: str, outcomes: dict[str, Any], folder: Path
) -> None:
    layout = Layout.parse(label)
    orders = actions(layout, layout.micro_batches(GLOBAL_BATCH))
    found = ranges_by_rank(folder / label, PROFILED)
    assert sorted(found) == [0, 1]
    for rank, steps in found.items():
        assert list(steps) == [PROFILED]
        for ranges in steps.values():
            assert marked_actions(ranges) == list(orders[rank])


@pytest.mark.parametrize("label", [*PIPELINES, *BESIDE])
def test_every_phase_is_marked(label: str, outcomes: dict[str, Any], folder: Path) -> None:
    for steps in ranges_by_rank(folder / label, PROFILED).values():
        for step, ranges in steps.items():
            count = Counter(found.phase for found in ranges)
            assert [count[phase] for phase in ONCE] == [1, 1, int(step % 2 == 0)]
            assert [count[phase] for phase in TWICE] == [2, 2]
            # After the last backward: once for the model, and in a pipeline once for each stage.
            stages = len({found.stage for found in ranges if found.phase == "forward"})
            assert count["reduce"] == 1 + stages * (Layout.parse(label).pipeline > 1)
            layout = Layout.parse(label)
            last = any(found.stage == layout.stages - 1 for found in ranges)
            forwards = layout.micro_batches(GLOBAL_BATCH) * (2 if step % 2 == 0 else 1)  # those of the evaluation too
            assert count["loss"] == last * forwards


@pytest.mark.parametrize("label", BESIDE)
def test_without_a_pipeline_every_micro_batch_is_forward_then_backward_in_stage_0(
    label: str, outcomes: dict[str, Any], folder: Path
) -> None:
    layout = Layout.parse(label)
    expected = [Action(kind, 0, m) for m in range(layout.micro_batches(GLOBAL_BATCH)) for kind in ("F", "B")]
    for steps in ranges_by_rank(folder / label, PROFILED).values():
        for ranges in steps.values():
            assert marked_actions(ranges) == expected


@pytest.mark.parametrize("label", COMPARED)
def test_a_profile_changes_no_bit_of_training(label: str, outcomes: dict[str, Any]) -> None:
    profiled, plain = outcomes[label], outcomes[f"plain {label}"]
    assert profiled["losses"] == plain["losses"]
    assert profiled["weights"] == plain["weights"]


@pytest.mark.parametrize("label", [*PIPELINES, *BESIDE, *AXES])
def test_no_range_is_opened_outside_of_the_window_or_on_other_ranks(label: str, outcomes: dict[str, Any]) -> None:
    for rank, opened in enumerate(outcomes[label]["opened_by_rank"]):
        chosen = label not in AXES or rank in CHOSEN
        assert [count > 0 for count in opened] == [chosen and step == PROFILED for step in range(1, STEPS + 1)]
    if label in COMPARED:
        assert not any(any(opened) for opened in outcomes[f"plain {label}"]["opened_by_rank"])


@pytest.mark.parametrize("label", AXES)
def test_only_the_chosen_ranks_write_and_name_the_groups_of_every_axis(
    label: str, outcomes: dict[str, Any], folder: Path
) -> None:
    found = traces(folder / label, PROFILED)
    assert sorted(found) == CHOSEN
    left = [path.name for path in (folder / label / "traces").rglob("*") if path.is_file()]
    assert len(left) == len(CHOSEN), left
    for rank, trace in found.items():
        sizes = {group["pg_desc"]: group["pg_size"] for group in trace["distributedInfo"]["pg_config"]}
        assert AXES[label].items() <= {name.removeprefix("mesh_"): size for name, size in sizes.items()}.items()
        micro_batches = Layout.parse(label).micro_batches(GLOBAL_BATCH)
        assert trace["torchlayout"] == {"rank": rank, "world": 4, "layout": label, "micro_batches": micro_batches}
        assert any(event.get("args", {}).get("Input Dims") for event in trace["traceEvents"])


@pytest.mark.parametrize("label", BESIDE)
def test_memory_is_measured_by_phase(label: str, outcomes: dict[str, Any], folder: Path) -> None:
    for rank in range(BESIDE[label]):
        found = json.loads((folder / label / "traces" / "step_2" / f"rank{rank}.memory.json").read_text())
        head = {key: value for key, value in found.items() if key != "steps"}
        assert head == {"version": 1, "rank": rank, "device": "cpu", "measure": "resident"}
        assert [step["step"] for step in found["steps"]] == [PROFILED]
        for step in found["steps"]:
            phases = {entry["phase"]: entry for entry in step["phases"]}
            assert {"forward", "backward", "optimizer", "step"} <= phases.keys()
            assert len(phases) == len(step["phases"])
            highest = max(entry["peak_bytes"] for entry in step["phases"])
            assert phases["step"]["peak_bytes"] == highest > 2**27
            assert all(entry["peak_bytes"] >= entry["end_bytes"] > 2**27 for entry in step["phases"])
