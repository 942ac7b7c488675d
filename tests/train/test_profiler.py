from __future__ import annotations

import gzip
import json
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from harness.cases import configuration
from harness.command import SmallRun
from harness.launch import torchrun
from torchlayout.config import Config
from torchlayout.data.corpus import Corpus
from torchlayout.layout import Layout
from torchlayout.records import RunDirectory
from torchlayout.schedule import Action, actions
from torchlayout.trace.ranges import Range
from torchlayout.train.environment import process_group
from torchlayout.train.profiler import Profiler
from torchlayout.train.trainer import Trainer
from train import profiler_ranks

CPU = torch.device("cpu")
STEPS, GLOBAL_BATCH, SEQUENCE, PROFILED = 3, 8, 32, [2]
SCHEDULES = ["gpipe", "1f1b", "interleaved2", "looped2", "zerobubble2", "zbv", "dualpipev"]
PIPELINES = [f"pp2+{schedule}+mb2" for schedule in SCHEDULES]
BESIDE = {"fsdp1+mb4": 1, "fsdp2+mb2": 2}
COMPARED = ["pp2+1f1b+mb2", "pp2+zerobubble2+mb2", "pp2+dualpipev+mb2", *BESIDE]
AXES = {"pp2-tp2": {"pp": 2, "tp": 2}, "dp2-fsdp2": {"dp": 2, "shard": 2}, "fsdp2-cp2": {"fsdp": 2, "cp": 2}}
CHOSEN = [1, 3]
ONCE = ["data", "optimizer", "evaluation"]
TWICE = ["exchange", "clip"]


def raw(corpus: Path, folder: Path, name: str, **profile: Any) -> dict[str, Any]:
    """fp64; an evaluation in each second step."""
    tables = configuration("grouped-query", str(corpus), "fp64", STEPS)
    tables["run"] |= {"directory": str(folder), "name": name}
    tables["data"] |= {"evaluation_fraction": 8.5 / Corpus.open(corpus).samples(SEQUENCE)}
    tables["train"] |= {"evaluate_every": 2, "evaluate_batches": 1}
    return tables | {"profile": profile}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiled")


@pytest.fixture(scope="module")
def outcomes(small_corpus: Path, folder: Path) -> dict[str, Any]:
    """What every layout came to with and without a profile, one launch for each number of ranks."""
    window = {"start_step": PROFILED[0], "steps": len(PROFILED)}
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


def traces(run: Path, step: int = PROFILED[0]) -> dict[int, dict[str, Any]]:
    """The traces of a window by rank."""
    found = {}
    for path in sorted((run / "traces" / f"step_{step}").glob("rank*.pt.trace.json.gz")):
        rank, host, *ending = path.name.split(".")
        assert host, path
        assert ending == ["pt", "trace", "json", "gz"]
        found[int(rank.removeprefix("rank"))] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def ranges_by_step(trace: dict[str, Any]) -> dict[int, list[Range]]:
    """The ranges inside of each step's, in the order of their starts."""
    events = sorted((e for e in trace["traceEvents"] if e.get("ph") == "X"), key=lambda event: event["ts"])
    spans = [(found, e) for e in events if (found := Range.parse(e["name"])) is not None]
    return {
        outer.step: [
            inner
            for inner, e in spans
            if inner.phase != "step" and 0 <= e["ts"] - around["ts"] <= around["dur"] - e["dur"]
        ]
        for outer, around in spans
        if outer.phase == "step" and outer.step is not None
    }


@cache
def ranges_by_rank(run: Path, step: int = PROFILED[0]) -> dict[int, dict[int, list[Range]]]:
    """By rank and step; kept, as a trace takes long to read."""
    return {rank: ranges_by_step(trace) for rank, trace in traces(run, step).items()}


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
    found = ranges_by_rank(folder / label)
    assert sorted(found) == [0, 1]
    for rank, steps in found.items():
        assert list(steps) == PROFILED
        for ranges in steps.values():
            assert Counter(marked_actions(ranges)) == Counter(orders[rank])
            if "dualpipev" not in label:  # whose pairs of F and B torch may run in either order
                assert marked_actions(ranges) == list(orders[rank])


@pytest.mark.parametrize("label", [*PIPELINES, *BESIDE])
def test_every_phase_is_marked(label: str, outcomes: dict[str, Any], folder: Path) -> None:
    for steps in ranges_by_rank(folder / label).values():
        for step, ranges in steps.items():
            count = Counter(found.phase for found in ranges)
            assert [count[phase] for phase in ONCE] == [1, 1, int(step % 2 == 0)]
            assert [count[phase] for phase in TWICE] == [2, 2]
            # After the last backward: once for the model, and in a pipeline once for each stage.
            stages = len({found.stage for found in ranges if found.phase == "forward"})
            assert count["reduce"] == 1 + stages * (Layout.parse(label).pipeline > 1)


@pytest.mark.parametrize("label", BESIDE)
def test_without_a_pipeline_every_micro_batch_is_forward_then_backward_in_stage_0(
    label: str, outcomes: dict[str, Any], folder: Path
) -> None:
    layout = Layout.parse(label)
    expected = [Action(kind, 0, m) for m in range(layout.micro_batches(GLOBAL_BATCH)) for kind in ("F", "B")]
    for steps in ranges_by_rank(folder / label).values():
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
        assert [count > 0 for count in opened] == [chosen and step in PROFILED for step in range(1, STEPS + 1)]
    if label in COMPARED:
        assert not any(any(opened) for opened in outcomes[f"plain {label}"]["opened_by_rank"])


@pytest.mark.parametrize("label", AXES)
def test_only_the_chosen_ranks_write_and_name_the_groups_of_every_axis(
    label: str, outcomes: dict[str, Any], folder: Path
) -> None:
    found = traces(folder / label)
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
        assert [step["step"] for step in found["steps"]] == PROFILED
        for step in found["steps"]:
            phases = {entry["phase"]: entry for entry in step["phases"]}
            assert {"forward", "backward", "optimizer", "step"} <= phases.keys()
            assert len(phases) == len(step["phases"])
            highest = max(entry["peak_bytes"] for entry in step["phases"])
            assert phases["step"]["peak_bytes"] == highest > 2**27
            assert all(entry["peak_bytes"] >= entry["end_bytes"] > 2**27 for entry in step["phases"])


class TestAlone:
    """One process, the debug model in one layout."""

    @pytest.fixture(autouse=True)
    def alone(self) -> Iterator[None]:
        with process_group(CPU, 60):
            yield

    def fitted(self, corpus: Path, folder: Path, steps_done: int = 0, **profile: Any) -> Trainer:
        """Trained from after `steps_done` to the end, as `run` does."""
        config = Config.from_dict(raw(corpus, folder, "run", **profile))
        trainer = Trainer(config, config.layout_for(1), CPU)
        trainer.steps_done = steps_done
        profiler = Profiler(trainer, RunDirectory(folder / "run"), Console(soft_wrap=True, highlight=False))
        trainer.fit([], profiler)
        profiler.finish()
        profiler.close()
        trainer.close()
        profiler.report()
        return trainer

    def test_a_run_that_continues_in_the_window_profiles_what_is_left(
        self, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.fitted(small_corpus, tmp_path, steps_done=1, start_step=1, steps=3)
        assert list(ranges_by_rank(tmp_path / "run", 2)[0]) == [2, 3]
        self.fitted(small_corpus, tmp_path, steps_done=2, start_step=1, steps=2)  # past it
        written = tmp_path / "run" / "traces"
        assert [path.name for path in written.iterdir()] == ["step_2"]
        says = f"traces in {written / 'step_2'}; torchlayout trace {tmp_path / 'run'}\n"
        assert capsys.readouterr().out == says

    def test_the_traces_of_an_earlier_start_are_set_aside_whole(
        self, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        earlier = tmp_path / "run" / "traces" / "step_3"
        earlier.mkdir(parents=True)
        (earlier / "rank7.elsewhere.pt.trace.json.gz").write_text("of eight ranks")
        self.fitted(small_corpus, tmp_path, steps_done=2, start_step=3, steps=1)
        assert [path.name for path in earlier.with_name("step_3.earlier1").iterdir()] == [
            "rank7.elsewhere.pt.trace.json.gz"
        ]
        assert list(traces(tmp_path / "run", 3)) == [0]
        assert f"traces of an earlier start are now in {earlier}.earlier1\n" in capsys.readouterr().out

    def test_halves_that_a_killed_start_left_go(self, small_corpus: Path, tmp_path: Path) -> None:
        half = tmp_path / "run" / "traces" / "step_3" / ".rank0.host.pt.trace.json.gz.77.half"
        half.parent.mkdir(parents=True)
        half.write_text("half")
        self.fitted(small_corpus, tmp_path, steps_done=2, start_step=3, steps=1)
        assert [path.name.startswith("rank0.") for path in half.parent.iterdir()] == [True]

    def test_a_folder_that_cannot_be_written_does_not_end_training(
        self, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "traces").write_text("no folder")
        trainer = self.fitted(small_corpus, tmp_path, steps_done=2, start_step=3, steps=1, memory=True)
        assert trainer.steps_done == STEPS
        said = capsys.readouterr().out.splitlines()
        assert said == [f"traces are missing in {tmp_path / 'run' / 'traces' / 'step_3'}: rank 0: Not a directory"]

    @pytest.mark.parametrize("limit", [0, 100_000], ids=["no room", "room for some"])
    def test_a_full_disk_does_not_end_training(
        self, limit: int, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with file_size_limit(limit):
            trainer = self.fitted(small_corpus, tmp_path, steps_done=2, start_step=3, steps=1)
        assert trainer.steps_done == STEPS
        assert list((tmp_path / "run" / "traces" / "step_3").iterdir()) == []
        out = capsys.readouterr().out
        assert out.count("traces are missing in ") == out.count("\n") == 1

    def test_a_step_that_breaks_leaves_no_profiler_running_and_no_trace(
        self, small_corpus: Path, tmp_path: Path
    ) -> None:
        config = Config.from_dict(raw(small_corpus, tmp_path, "run", start_step=1, steps=2))
        trainer = Trainer(config, config.layout_for(1), CPU)
        profiler = Profiler(trainer, RunDirectory(tmp_path / "run"), Console())
        trainer.optimizer.step = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        with pytest.raises(ZeroDivisionError):
            trainer.fit([], profiler)
        profiler.close()
        profiler.report()
        with torch.profiler.profile():  # a second one at a time would be an error
            pass
        assert not (tmp_path / "run" / "traces").exists()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_command_profiles_and_says_where(tmp_path: Path, small_corpus: Path) -> None:
    small = SmallRun(tmp_path, small_corpus)
    done = small.run(small.line(profile__start_step=2, profile__steps=1, checkpoint__every=0))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == (
        f"traces in {small.directory.traces_path / 'step_2'}; torchlayout trace {small.directory.path}"
    )
    assert list(traces(small.directory.path)) == [0]
    assert small.directory.read_run()["exit_reason"] == "done"
