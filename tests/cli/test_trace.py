"""`torchlayout trace`: what it reads, prints and writes, and how it exits."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.traces import Traced, host_pipeline, write_all
from torchlayout.cli import main
from torchlayout.layout import Layout
from torchlayout.schedule import actions, timeline
from torchlayout.trace import analyse
from torchlayout.trace.document import validated

ROOT = Path(__file__).parents[2]
WRITTEN = {"breakdown.json", "timeline.json.gz", "timeline.png", "timeline.svg", "merged.json.gz"}
CONFIG = """
[run]
name = "traced"
[model]
preset = "debug"
[data]
path = "nowhere"
sequence_length = 32
[batch]
global_size = 4
[optimizer]
learning_rate = 1e-3
[hardware]
name = "a100-sxm-80gb"
"""


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `torchlayout trace ...`."""
    with pytest.raises(SystemExit) as exit:
        main(["trace", *map(str, arguments)])
    out, err = capsys.readouterr()
    code = exit.value.code
    assert isinstance(code, int)
    return code, out, err


def pair(step: int = 1) -> list[Traced]:
    """Two stages on two ranks, in one step."""
    played = timeline(actions(Layout.parse("pp2+1f1b"), 4), lambda action: 1.0)
    traces = host_pipeline(played.ranks, 12)
    for trace in traces:
        trace.events[0]["name"] = f"torchlayout:step step={step}"
    return traces


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Traces of somebody."""
    return write_all(tmp_path / "foreign", pair())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of this project that was profiled in steps 3 and 9."""
    made = tmp_path / "run"
    for step in (3, 9):
        write_all(made / "traces" / f"step_{step}", pair(step))
    (made / "config.toml").write_text(CONFIG)
    (made / "run.json").write_text(json.dumps({"layout": "pp2", "hardware": {"device_name": "cpu"}}))
    return made


def files(folder: Path) -> set[str]:
    """What is in a folder beside traces."""
    return {path.name for path in folder.iterdir() if ".pt.trace." not in path.name}


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The JSON of a command that succeeds."""
    code, out, err = command(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


class TestForeignTraces:
    def test_a_folder_is_printed_and_nothing_is_written(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = command(capsys, folder)
        assert code == 0
        lines = out.splitlines()
        assert lines[0] == f"{folder}: 2 of 2 ranks on cpu, step 1"
        assert any(line.split()[:2] == ["compute/gemm", "0.80"] for line in lines)
        assert any(line.split()[:3] == ["step", "1.20", "100.0"] for line in lines)
        assert (
            "bubble: 20.0% of the pipeline's makespan (the shares are of the step); the schedule itself has 20.0%"
            in lines
        )
        assert files(folder) == set()

    def test_one_file_is_enough(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        document = printed(capsys, folder / "rank1.a.pt.trace.json.gz")
        assert document["ranks"] == [1]
        assert files(folder) == set()

    def test_out_takes_every_file(self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "not" / "there"
        document = printed(capsys, folder, "--out", out)
        assert files(out) == WRITTEN
        assert json.loads((out / "breakdown.json").read_text()) == document
        assert files(folder) == set()

    def test_a_path_is_printed_as_it_is(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        odd = folder.rename(folder.with_name("tr[b]aces"))
        code, out, _ = command(capsys, odd, "--out", odd / "[red]")
        assert code == 0
        assert out.startswith(f"{odd}: ")
        assert f"written to {odd}/[red]: breakdown.json" in out

    def test_json_is_of_the_published_schema(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        document = printed(capsys, folder)
        assert validated(document) == document

    def test_several_at_once_give_the_same(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alone = printed(capsys, folder, "--jobs", 1)
        monkeypatch.setattr(analyse, "WORTH_PROCESSES_BYTES", 0)
        assert printed(capsys, folder, "--jobs", 2) == alone

    def test_a_trace_that_was_cut_off_is_read_as_far_as_it_goes_with_a_note(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trace = folder / "rank1.a.pt.trace.json.gz"
        trace.write_bytes(trace.read_bytes()[:-40])
        code, out, _ = command(capsys, folder)
        assert code == 0
        assert f"note: {trace} ends in the middle of an event; what comes before was read" in out.splitlines()

    def test_a_trace_that_cannot_be_read_is_left_out_with_a_note(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "rank1.a.pt.trace.json.gz").write_bytes(b"\x1f\x8b half")
        code, out, _ = command(capsys, folder)
        assert code == 0
        assert "1 of 2 ranks" in out.splitlines()[0]
        assert "note: " in out

    def test_a_second_trace_of_a_rank_is_left_out_with_a_note(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "rank1.b.pt.trace.json.gz").write_bytes((folder / "rank1.a.pt.trace.json.gz").read_bytes())
        assert printed(capsys, folder)["notes"] == ["rank 1 has more than one trace here; the first by name counts"]


class TestRun:
    def test_every_window_is_analysed_beside_its_traces(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = command(capsys, run)
        assert code == 0
        headings = [line for line in out.splitlines() if "ranks on" in line]
        assert headings == ["pp2: 2 of 2 ranks on cpu, step 3", "pp2: 2 of 2 ranks on cpu, step 9"]
        for step in (3, 9):
            assert files(run / "traces" / f"step_{step}") == WRITTEN
        assert {path.suffix for path in (run / "tensorboard").iterdir()} == {".trace3", ".trace9"}

    def test_what_the_run_was_is_known(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        documents = printed(capsys, run)
        assert [one["steps"][0]["step"] for one in documents] == [3, 9]
        for document in documents:
            assert document["layout"] == "pp2"
            assert document["notes"] == []
            assert sum(document["predicted"]["shares"].values()) == pytest.approx(document["predicted"]["seconds"])
            assert document["steps"][0]["ranks"][0]["flops_per_second"] > 0
            validated(document)

    def test_memory_of_ranks_is_taken_along_and_broken_files_are_not(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        window = run / "traces" / "step_3"
        for rank, text in ((10, '{"rank": 10}'), (2, '{"rank": 2}'), (3, '{"ra'), (4, "[]"), (5, '{"rank": "five"}')):
            (window / f"rank{rank}.memory.json").write_text(text)
        assert [one["rank"] for one in printed(capsys, window)["memory"]] == ["five", 2, 10]

    def test_a_step_is_printed_alone_and_not_written(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        document = printed(capsys, run, "--step", 9)
        assert [step["step"] for step in document["steps"]] == [9]
        assert files(run / "traces" / "step_9") == set()
        assert not (run / "tensorboard").exists()

    def test_a_window_is_analysed_as_part_of_its_run(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert printed(capsys, run / "traces" / "step_9")["layout"] == "pp2"
        assert files(run / "traces" / "step_9") == WRITTEN
        assert files(run / "traces" / "step_3") == set()

    def test_the_folder_that_one_is_in_is_known_too(
        self, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder, windows in ((run / "traces" / "step_9", 1), (run, 2)):
            monkeypatch.chdir(folder)
            found = printed(capsys, ".")
            documents = found if isinstance(found, list) else [found]
            assert [document["layout"] for document in documents] == ["pp2"] * windows

    def test_out_has_a_folder_for_each_window(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command(capsys, run, "--out", tmp_path / "out")[0] == 0
        assert files(tmp_path / "out") == {"step_3", "step_9"}
        assert files(tmp_path / "out" / "step_9") == WRITTEN
        assert files(run / "traces" / "step_9") == set()
        assert not (run / "tensorboard").exists()

    def test_a_second_analysis_replaces_the_first(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        first = printed(capsys, run)
        assert printed(capsys, run) == first
        assert len(list((run / "tensorboard").iterdir())) == 2

    @pytest.mark.parametrize(
        ("file", "text"),
        [("config.toml", "[run"), ("config.toml", "[run]\nspeed = 3"), ("run.json", "{"), ("run.json", "{}")],
    )
    def test_a_run_whose_files_are_broken_is_analysed_with_a_note(
        self, run: Path, file: str, text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (run / file).write_text(text)
        for document in printed(capsys, run):
            assert document["layout"] is None
            assert document["predicted"] is None
            (note,) = document["notes"]
            assert note.startswith("what the run was is not known: ")

    def test_a_run_that_lost_its_configuration_is_analysed_too(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (run / "config.toml").unlink()
        assert len(printed(capsys, run)) == 2


def test_an_empty_window_does_not_hide_the_others(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk leaves one."""
    (run / "traces" / "step_5").mkdir()
    (run / "traces" / "step_3.earlier1").mkdir()
    code, out, err = command(capsys, run)
    assert code == 0
    assert f"{run / 'traces' / 'step_5'} holds no trace" in err
    assert "step_3.earlier1" not in out + err
    assert {step for step in (3, 9) if (run / "traces" / f"step_{step}" / "breakdown.json").exists()} == {3, 9}


def test_only_the_step_that_was_asked_for_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, other = Traced(rank=0, world=2), Traced(rank=1, world=2)
    for step in (1, 2):
        trace.mark("step", 100 * step, 100 * step + 90, step=step)
        trace.op("aten::mm", 100 * step, 100 * step + 10)
    trace.op("aten::mm", 195, 196)
    other.mark("step", 100, 190, step=1)
    other.op("aten::mm", 100, 110)
    write_all(tmp_path, [trace, other])
    whole, second = printed(capsys, tmp_path), printed(capsys, tmp_path, "--step", 2)
    assert [kernel["count"] for kernel in whole["kernels"]] == [4]
    assert [kernel["count"] for kernel in second["kernels"]] == [1]
    assert second["ranks"] == [0]


@pytest.mark.parametrize("kind", ["dangling", "loop", "fifo"])
def test_what_is_no_file_is_left_out_with_a_note(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    odd = folder / "rank7.pt.trace.json"
    if kind == "fifo":
        os.mkfifo(odd)
    else:
        odd.symlink_to(odd if kind == "loop" else "nowhere")
    document = printed(capsys, folder)
    assert document["ranks"] == [0, 1]
    assert f"{odd} is no regular file" in document["notes"]


def metrics(run: Path, seconds: list[float]) -> None:
    lines = [json.dumps({"step": step, "seconds": each}) for step, each in enumerate(seconds, start=1)]
    (run / "metrics.jsonl").write_text("\n".join(lines))


def test_the_usual_step_is_neither_warm_up_nor_profiled(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.toml").write_text(CONFIG + "\n[profile]\nsteps = 1\nstart_step = 3\n")
    metrics(run, [9.0, 9.0, 9.0, 1.2e-4, 2.4e-4, 3e-4])
    documents = printed(capsys, run)
    assert {document["untraced_seconds"] for document in documents} == {2.4e-4}
    assert "traced steps take 5.0 times as long as the others (0.00024 s in the median)" in documents[0]["notes"][-1]


def test_the_folder_of_all_windows_is_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, run / "traces") == printed(capsys, run)


class TestRefused:
    """One sentence on stderr, nothing on stdout, and exit code 2."""

    def refused(self, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
        code, out, err = command(capsys, *arguments)
        assert (code, out) == (2, "")
        (sentence,) = [line for line in err.splitlines() if not line.startswith("reading ")]
        return sentence

    def test_a_path_that_is_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        sentence = self.refused(capsys, tmp_path / "absent")
        assert sentence == f"{tmp_path / 'absent'} does not exist; name a run, a folder with traces, or one trace"

    def test_a_folder_without_traces(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.refused(capsys, tmp_path).startswith(f"{tmp_path} holds no trace; name a run, a folder with ")

    def test_a_run_that_was_not_profiled(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for step in (3, 9):
            for path in (run / "traces" / f"step_{step}").iterdir():
                path.unlink()
            (run / "traces" / f"step_{step}").rmdir()
        sentence = f"the run {run} has no traces; set profile.steps = 3, say, and run it again"
        assert self.refused(capsys, run) == sentence

    def test_traces_of_jobs_of_other_sizes_together(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        small, large = Traced(rank=0, world=2), Traced(rank=1, world=128)
        for trace in (small, large):
            trace.mark("step", 0, 100, step=1)
        sentence = self.refused(capsys, write_all(tmp_path, [small, large]))
        assert sentence == f"{tmp_path} holds traces of jobs of 2 and 128 ranks; analyse those of one job at a time"

    def test_traces_without_a_step_in_common(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        early, late = Traced(rank=0, world=2), Traced(rank=1, world=2)
        early.mark("step", 0, 100, step=1)
        late.mark("step", 0, 100, step=7)
        sentence = self.refused(capsys, write_all(tmp_path, [early, late]))
        assert "rank 0 and rank 1" in sentence
        assert "have no step in common" in sentence

    def test_a_step_that_is_not_held(self, run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.refused(capsys, folder, "--step", 5) == f"no trace in {folder} holds step 5; held: 1"
        for step, held in ((1, 3), (5, 3), (10, 9)):
            sentence = f"no trace in {run}/traces/step_{held} holds step {step}; held: {held}"
            assert self.refused(capsys, run, "--step", step) == sentence

    def test_a_file_that_is_no_trace(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "trace.json"
        path.write_text('{"a": 1}')
        sentence = f"{path} holds no operator, kernel or range; is it a trace of torch.profiler?"
        assert self.refused(capsys, path) == sentence

    def test_a_run_that_must_not_be_written_to(
        self, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Path, content: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

        monkeypatch.setattr(analyse, "write_atomically", refuse)
        sentence = f"{run}/traces/step_3 cannot be written to: Read-only file system; choose --out"
        assert self.refused(capsys, run) == sentence

    def test_an_out_that_is_no_folder_or_cannot_be_made(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = folder / "rank0.a.pt.trace.json.gz"
        sentence = f"--out {file} is no folder; name one, which need not be there"
        assert self.refused(capsys, folder, "--out", file) == sentence
        assert self.refused(capsys, folder, "--out", "/proc/none").startswith("/proc/none cannot be written to: ")


def test_torch_is_never_loaded(run: Path) -> None:
    code = (
        "import sys\nfrom torchlayout.cli import main\ntry:\n    main(['trace', sys.argv[1], '--json'])\n"
        "except SystemExit as exit:\n    assert exit.code == 0\nprint('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, run], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == "False"
    assert len(json.loads(done.stdout)) == 2
