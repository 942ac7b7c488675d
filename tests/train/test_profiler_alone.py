"""One process that profiles: its window, and what can go wrong with its files."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from harness.command import SmallRun
from torchlayout.config import Config
from torchlayout.records import RunDirectory
from torchlayout.train import profiler
from torchlayout.train.environment import process_group
from torchlayout.train.profiler import Profiler
from torchlayout.train.trainer import Trainer
from train.profiled import STEPS, ranges_by_rank, raw, traces

CPU = torch.device("cpu")


class TestAlone:
    """One process, the debug model in one layout."""

    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(profiler, "break_down", lambda folder, run: f"of {run}")
        with process_group(CPU, 60):
            yield

    def fitted(self, corpus: Path, folder: Path, steps_done: int = 0, **profile: Any) -> Trainer:
        """Trained from after `steps_done` to the end, as `run` does."""
        config = Config.from_dict(raw(corpus, folder, "run", **profile))
        trainer = Trainer(config, config.layout_for(1), CPU)
        trainer.steps_done = steps_done
        profiling = Profiler(trainer, RunDirectory(folder / "run"), Console(soft_wrap=True, highlight=False))
        trainer.fit([], profiling)
        profiling.finish()
        profiling.close()
        trainer.close()
        profiling.report()
        return trainer

    def test_a_run_that_continues_in_the_window_profiles_what_is_left(
        self, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.fitted(small_corpus, tmp_path, steps_done=1, start_step=1, steps=3)
        assert list(ranges_by_rank(tmp_path / "run", 2)[0]) == [2, 3]
        self.fitted(small_corpus, tmp_path, steps_done=2, start_step=1, steps=2)  # past it
        written = tmp_path / "run" / "traces"
        assert [path.name for path in written.iterdir()] == ["step_2"]
        assert capsys.readouterr().out == (
            f"traces in {written / 'step_2'}; of {tmp_path / 'run'}\n"
            "nothing is profiled: step 3 is next, after those of profile.start_step = 1; set it to 3 or more\n"
        )

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
        profiling = Profiler(trainer, RunDirectory(tmp_path / "run"), Console())
        trainer.optimizer.step = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        with pytest.raises(ZeroDivisionError):
            trainer.fit([], profiling)
        profiling.close()
        profiling.report()
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
    done = small.run(small.line(profile__start_step=2, profile__steps=1, checkpoint__every=2))
    assert (done.returncode, done.stderr) == (0, "")
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"traces in {small.directory.traces_path / 'step_2'}; ")
    assert last.endswith(f"torchlayout trace {small.directory.path}")
    assert [found.phase for found in ranges_by_rank(small.directory.path, 2)[0][2]].count("checkpoint") == 1
    assert small.directory.read_run()["exit_reason"] == "done"
