from __future__ import annotations

import contextlib
import io
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchlayout import hardware
from torchlayout.config import Config
from torchlayout.records import RunDirectory
from torchlayout.train.__main__ import main
from torchlayout.train.metrics import record, speed_of
from torchlayout.train.trainer import StepResult, Trainer

STEPS, GLOBAL_BATCH, SEQUENCE = 5, 4, 32
KEYS = {
    "step",
    "loss",
    "grad_norm",
    "learning_rate",
    "tokens",
    "seconds",
    "data_seconds",
    "tokens_per_second",
    "tokens_per_second_per_device",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "peak_memory_bytes_by_rank",
    "batch_digest",
    "skipped",
}
FILE = f"""
[run]
name = "one"
directory = "DIRECTORY"
[model]
preset = "debug"
[data]
path = "CORPUS"
sequence_length = {SEQUENCE}
workers = 0
evaluation_fraction = 0.02
[batch]
global_size = {GLOBAL_BATCH}
[precision]
parameters = "fp32"
[train]
steps = {STEPS}
log_every = 3
evaluate_every = 4
evaluate_batches = 1
[layout]
label = "fsdp1+mb4"
"""


@dataclass(frozen=True)
class Run:
    """A run in this process, and what it left behind."""

    config: Path
    status: int
    wall_seconds: float
    out: str
    err: str
    files: RunDirectory


@pytest.fixture(scope="module")
def write(small_corpus: Path) -> Callable[[Path], Path]:
    """Writes the file of a run below a folder."""

    def config_in(folder: Path) -> Path:
        text = FILE.replace("CORPUS", str(small_corpus)).replace("DIRECTORY", str(folder))
        (folder / "input.toml").write_text(text)
        return folder / "input.toml"

    return config_in


def run(config: Path, *arguments: str, name: str = "one") -> Run:
    out, err = io.StringIO(), io.StringIO()
    started = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(config), "--set", f"run.name={name}", *arguments])
    wall = time.perf_counter() - started
    return Run(config, status, wall, out.getvalue(), err.getvalue(), RunDirectory(config.parent / name))


@pytest.fixture(scope="module")
def finished(write: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run to the end; no test changes its files."""
    done = run(write(tmp_path_factory.mktemp("runs")))
    assert (done.status, done.err) == (0, "")
    return done


def test_every_step_is_a_line_with_every_key_whatever_is_printed(finished: Run) -> None:
    lines = [json.loads(line) for line in finished.files.metrics_path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        evaluated = {"evaluation_loss"} if line["step"] in (4, 5) else set()
        assert line.keys() == KEYS | evaluated
        assert line["skipped"] is False
        assert len(line["batch_digest"]) == 16
        assert line["peak_memory_bytes_by_rank"] == [line["peak_memory_bytes"]]
    assert len({line["batch_digest"] for line in lines}) == STEPS
    assert [line["tokens"] for line in lines] == [step * GLOBAL_BATCH * SEQUENCE for step in range(1, STEPS + 1)]


def test_only_every_third_step_the_first_the_last_and_the_evaluated_are_printed(finished: Run) -> None:
    steps = [line.split()[1] for line in finished.out.splitlines() if line.startswith("step")]
    assert steps == ["1/5", "3/5", "4/5", "5/5"]
    assert "evaluation loss" in finished.out


def test_speed_is_that_of_each_single_step_also_of_the_first(finished: Run) -> None:
    lines = finished.files.metrics()
    assert sum(line["seconds"] for line in lines) < finished.wall_seconds
    for line in lines:
        assert line["tokens_per_second"] == pytest.approx(GLOBAL_BATCH * SEQUENCE / line["seconds"])
        assert line["tokens_per_second_per_device"] == line["tokens_per_second"]
        assert line["data_seconds"] < line["seconds"]


def test_run_json_says_what_ran_where_and_how_it_ended(finished: Run) -> None:
    facts = finished.files.read_run()
    stated = {
        "layout": "fsdp1+mb4",
        "world": 1,
        "resumed_from": None,
        "parameters_by_rank": [180_928],
        "exit_reason": "done",
        "steps": STEPS,
        "skipped_steps": 0,
    }
    assert stated.items() <= facts.items()
    assert len(facts["initial_weights_digest"]) == 16
    assert facts["software"].keys() >= {"torchlayout", "torch", "torchdata", "python", "cuda"}
    assert facts["hardware"].keys() >= {"host", "device", "device_name", "backend"}


def test_tensorboard_shows_scalars_configuration_layout_and_hparams(finished: Run) -> None:
    board = EventAccumulator(str(finished.files.tensorboard_path), size_guidance={"tensors": 0})
    board.Reload()
    lines = finished.files.metrics()
    for name in ("loss", "grad_norm", "learning_rate", "seconds", "tokens_per_second"):
        events = board.Scalars(f"train/{name}")
        assert [event.step for event in events] == list(range(1, STEPS + 1))
        assert [event.value for event in events] == pytest.approx([line[name] for line in lines], rel=1e-6)
    assert [event.step for event in board.Scalars("evaluation/loss")] == [4, 5]
    texts = {
        name: board.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for name in ("config", "layout")
    }
    assert texts["layout"] == "fsdp1+mb4"
    assert finished.files.config_path.read_text() in texts["config"]
    assert "_hparams_/session_start_info" in board.PluginTagToContent("hparams")
    session = board.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    assert b"fsdp1+mb4" in session
    assert b"sequence_parallel" in session


def test_the_written_configuration_runs_again_and_gives_the_same_numbers(finished: Run, tmp_path: Path) -> None:
    again = run(finished.files.config_path, "--set", f"run.directory={tmp_path}", name="again")
    assert again.status == 0, again.err
    files = RunDirectory(tmp_path / "again")
    for key in ("loss", "grad_norm", "batch_digest", "evaluation_loss"):
        assert [line.get(key) for line in files.metrics()] == [line.get(key) for line in finished.files.metrics()]
    first, second = (Config.load(each.config_path).model_dump() for each in (finished.files, files))
    assert second["run"].pop("name") == "again"
    assert second["run"].pop("directory") == str(tmp_path)
    assert first | {"run": {"seed": first["run"]["seed"]}} == second


def test_a_second_run_in_the_same_directory_is_refused_and_nothing_is_lost(finished: Run) -> None:
    before = {path: path.read_bytes() for path in sorted(finished.files.path.rglob("*")) if path.is_file()}
    second = run(finished.config, "--set", "train.steps=1")
    assert second.status == 2
    assert second.err.count("\n") == 1
    assert "already holds a run, and no checkpoint to continue; choose another run.name" in second.err
    after = {path: path.read_bytes() for path in sorted(finished.files.path.rglob("*")) if path.is_file()}
    assert before == after


def test_there_is_no_mfu_on_an_unknown_device_and_the_reason_is_said(finished: Run) -> None:
    assert all(line["mfu"] is None and line["hfu"] is None for line in finished.files.metrics())
    note = finished.files.read_run()["mfu_note"]
    assert note.startswith("no MFU: the peak of ")
    assert note in finished.out


def test_mfu_is_right_where_the_hardware_is_named(write: Callable[[Path], Path], tmp_path: Path) -> None:
    done = run(write(tmp_path), "--set", "hardware.name=a100-sxm-80gb", "--set", "train.evaluate_every=0")
    assert done.status == 0, done.err
    # 6 x 180,928 parameters + 12 x 4 layers x 64 x 32 tokens; the chunked loss does 2 x 257 x 64 again; fp32 peak.
    for line in done.files.metrics():
        per_second = line["tokens_per_second"]
        assert line["mfu"] == pytest.approx(per_second * 1_183_872 / 19.5e12, rel=1e-12)
        assert line["hfu"] == pytest.approx(per_second * (1_183_872 + 32_896) / 19.5e12, rel=1e-12)
    assert "MFU against a100-sxm-80gb: 20 TFLOP/s in fp32" in done.out
    board = EventAccumulator(str(done.files.tensorboard_path))
    board.Reload()
    assert len(board.Scalars("train/mfu")) == STEPS


def test_mfu_is_that_of_one_device_of_all(write: Callable[[Path], Path], tmp_path: Path) -> None:
    config = Config.load(write(tmp_path), ["hardware.name=a100-sxm-80gb", "precision.parameters=bf16"])
    speed, _ = speed_of(config, config.layout_for(1), "cpu")
    result = StepResult(1, 5.0, 1.0, 1e-3, 4096, 2.0, 0.1, (5, 7, 6, 4), "0" * 16, False)
    line = record(result, 4, 4096, speed)
    assert line["tokens_per_second_per_device"] == 512.0
    assert line["mfu"] == pytest.approx(512 * 1_183_872 / 312e12)
    assert line["peak_memory_bytes"] == 7
    unknown = record(result, 4, 4096, None)
    assert (unknown["mfu"], unknown["hfu"]) == (None, None)


def test_there_is_no_mfu_where_the_device_states_no_peak_for_the_precision(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    peaks = tmp_path / "device.toml"
    source = Path(hardware.__file__).parent / "devices" / "a100-sxm-80gb.toml"
    peaks.write_text("".join(line for line in source.open() if not line.startswith("fp64")))
    config = Config.load(write(tmp_path), [f"hardware.name={peaks}", "precision.parameters=fp64"])
    assert speed_of(config, config.layout_for(1), "cpu") == (None, "no MFU: a100-sxm-80gb states no peak for fp64")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [(RuntimeError("planted"), 1, "RuntimeError: planted"), (KeyboardInterrupt(), 130, "interrupted")],
    ids=["error", "Ctrl-C"],
)
def test_a_run_that_breaks_says_why_in_run_json_and_keeps_its_steps(
    error: BaseException,
    status: int,
    reason: str,
    write: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Trainer.step

    def breaking(trainer: Trainer) -> StepResult:
        if trainer.steps_done == 2:
            raise error
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", breaking)
    broken = run(write(tmp_path))
    assert broken.status == status
    assert ("planted" in broken.err) == (status == 1)
    facts = broken.files.read_run()
    assert (facts["exit_reason"], facts["steps"]) == (reason, 2)
    assert [line["step"] for line in broken.files.metrics()] == [1, 2]


def test_training_that_diverges_stops_with_one_sentence_and_exit_1(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    absurd = ["optimizer.learning_rate=1000", "optimizer.weight_decay=1000", "train.stop_after_non_finite=2"]
    settings = [*absurd, "train.steps=50", "train.evaluate_every=0", "optimizer.decay=constant"]
    stopped = run(write(tmp_path), *(word for setting in settings for word in ("--set", setting)))
    assert stopped.status == 1
    assert stopped.err.count("\n") == 1
    facts, lines = stopped.files.read_run(), stopped.files.metrics()
    assert facts["exit_reason"] + "\n" == stopped.err
    assert facts["skipped_steps"] == 2
    assert [line["skipped"] for line in lines] == [False] * (len(lines) - 2) + [True, True]
    assert lines[-1]["loss"] is None
    assert all(math.isfinite(line["loss"]) for line in lines[:-2])
    assert f"stopped at step {len(lines)}: loss or gradient was not finite in 2 steps in a row" in stopped.err
