from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from config.bad_cases import CASES, GOOD, Case
from harness.launch import torchrun
from torchlayout.data.prepare import prepare
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.records import RunDirectory
from torchlayout.train.__main__ import GRACE_SECONDS, main

# Runs every case in one process, which is to end without torch: [[arguments, ranks], ...] on standard input.
CHILD = """
import contextlib, io, json, os, sys
from torchlayout.train.__main__ import main
outcomes = []
for arguments, ranks in json.load(sys.stdin):
    os.environ["WORLD_SIZE"] = str(ranks)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    outcomes.append([status, out.getvalue(), err.getvalue()])
print(json.dumps({"outcomes": outcomes, "torch": "torch" in sys.modules}))
"""


@pytest.fixture(scope="module")
def files(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each case, by its name."""
    folder = tmp_path_factory.mktemp("cases")
    paths = {case.name: folder / f"{number}.toml" for number, case in enumerate(CASES)}
    for case in CASES:
        case.write(paths[case.name], small_corpus)
    return paths


@pytest.fixture(scope="module")
def outcomes(files: dict[str, Path]) -> dict[str, Any]:
    """Exit status, standard output and standard error of each case, and whether torch was imported for any."""
    given = json.dumps([[[str(files[case.name]), *case.arguments], ranks(case)] for case in CASES])
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    names = [case.name for case in CASES]
    return dict(zip(names, result["outcomes"], strict=True)) | {"torch": result["torch"]}


def ranks(case: Case) -> int:
    """As many as the label asks for, so that their number is not what is wrong."""
    if case.world is not None:
        return case.world
    try:
        return Layout.parse(case.arguments[1]).world if case.arguments[:1] == ("--layout",) else 1
    except InputError:
        return 1


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchlayout.train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_configuration_gives_one_sentence_and_exit_2(case: Case, outcomes: dict[str, Any]) -> None:
    status, out, err = outcomes[case.name]
    assert (status, out) == (2, "")
    assert err.count("\n") == 1, err
    assert case.says in err


def test_no_bad_configuration_needs_torch_to_be_refused(outcomes: dict[str, Any]) -> None:
    assert outcomes["torch"] is False


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=lambda case: case.name)
def test_the_command_says_it_without_a_traceback(case: Case, files: dict[str, Path]) -> None:
    done = python(str(files[case.name]), *case.arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert case.says in done.stderr


def test_help_shows_how_to_launch() -> None:
    done = python("--help")
    assert done.returncode == 0
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "torchrun --nproc-per-node 8 -m torchlayout.train configs/quickstart.toml --layout pp2-fsdp2-tp2+sp" in lines
    assert "python -m torchlayout.train configs/llama_debug.toml --set train.steps=50" in lines


@pytest.mark.parametrize("arguments", [["--wrold", "2"], [], ["x.toml", "y.toml"]], ids=str)
def test_a_wrong_command_line_is_one_sentence_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_under_torchrun_rank_0_alone_says_it_also_where_it_is_last(files: dict[str, Path], tmp_path: Path) -> None:
    late = tmp_path / "late.py"
    late.write_text(
        "import os, sys, time\n"
        "from torchlayout.train.__main__ import main\n"
        "time.sleep(1.5 if os.environ['RANK'] == '0' else 0.0)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    case = next(case for case in CASES if case.name == "degree of zero")
    done = torchrun(2, str(late), str(files[case.name]), *case.arguments)
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if case.says in line]) == 1


def test_what_only_another_rank_finds_wrong_that_rank_says_after_a_while(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setenv("RANK", "3")
    assert main([str(tmp_path / "none.toml")]) == 2
    assert waited == [GRACE_SECONDS]
    assert capsys.readouterr().err.startswith("rank 3: ")


def test_under_torchrun_a_run_that_diverges_says_so_once_and_in_run_json(small_corpus: Path, tmp_path: Path) -> None:
    config = tmp_path / "input.toml"
    config.write_text(GOOD.replace("CORPUS", str(small_corpus)))
    settings = [
        f"run.directory={tmp_path}",
        "train.steps=50",
        "train.stop_after_non_finite=2",
        "optimizer.learning_rate=1000",
        "optimizer.weight_decay=1000",
        "optimizer.decay=constant",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    done = torchrun(2, "-m", "torchlayout.train", str(config), "--layout", "pp2+mb4", *words)
    assert done.returncode == 1
    files = RunDirectory(tmp_path / "good")
    facts = files.read_run()
    assert facts["exit_reason"].startswith("stopped at step ")
    assert done.stderr.count(facts["exit_reason"]) == 1
    assert (facts["world"], facts["layout"], facts["skipped_steps"]) == (2, "pp2+mb4", 2)
    assert sum(facts["parameters_by_rank"]) == 180_928
    assert all(len(line["peak_memory_bytes_by_rank"]) == 2 for line in files.metrics())


class TestTheCorpus:
    """What is wrong with it is one sentence and exit 2, without a run directory."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        (tmp_path / "short.txt").write_text("ten bytes.")
        prepare([str(tmp_path / "short.txt")], tmp_path / "short")

    def refused(self, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> str:
        config = tmp_path / "input.toml"
        config.write_text(GOOD.replace("CORPUS", str(corpus)))
        words = [word for setting in (f"run.directory={tmp_path}", *settings) for word in ("--set", setting)]
        assert main([str(config), *words]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert not (tmp_path / "good").exists()
        return err

    def test_missing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "does not exist; make it with: torchlayout data prepare" in self.refused(
            tmp_path / "none", tmp_path, capsys
        )

    def test_of_more_ids_than_the_model_has(
        self, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = self.refused(small_corpus, tmp_path, capsys, "model.vocab_size=256")
        assert "model.vocab_size = 256 is below the 257 token ids" in said

    def test_too_small_for_a_sample(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        said = self.refused(tmp_path / "short", tmp_path, capsys)
        assert "data.sequence_length = 32 is longer than" in said
        assert "legal: 1 to 10" in said

    def test_of_one_sample_that_is_to_be_held_out(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        settings = ("data.sequence_length=8", "data.evaluation_fraction=0.5")
        assert "leaves nothing to train on" in self.refused(tmp_path / "short", tmp_path, capsys, *settings)
