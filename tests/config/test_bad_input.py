from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from config.bad_cases import CASES, GOOD, Case
from torchlayout.cli import main


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text("To be, or not to be, that is the question.\n" * 50)
    with pytest.raises(SystemExit) as exit:
        main(["data", "prepare", str(folder / "text.txt"), "--out", str(folder / "tokens")])
    assert exit.value.code == 0
    return folder / "tokens"


def arguments(case: Case, path: Path) -> list[str]:
    world = ["--world", str(case.world)] if case.world else []
    return ["config", "check", str(path), *case.arguments, *world]


def test_there_are_at_least_25_different_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_configuration_gives_one_sentence_and_exit_2(
    case: Case, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    case.write(path, corpus)
    with pytest.raises(SystemExit) as exit:
        main(arguments(case, path))
    out, err = capsys.readouterr()
    assert exit.value.code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert case.says in err
    assert len(err) < 500 + len(str(path)) + len(str(corpus))


def test_a_good_configuration_gives_one_line_and_exit_0(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    Case("good", "").write(path, corpus)
    with pytest.raises(SystemExit) as exit:
        main(["config", "check", str(path), "--layout", "pp2-fsdp2-tp2+sp", "--world", "8"])
    out, err = capsys.readouterr()
    assert exit.value.code == 0
    assert err == ""
    assert out.count("\n") == 1
    assert "pp2-fsdp2-tp2+sp on 8 ranks" in out


def test_all_problems_are_said_at_once(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text(GOOD + '[optimizer]\nlearning_rat = 1\nbetas = [2, "x"]\n[layout]\nlabel = "fsdq2"\n')
    with pytest.raises(SystemExit) as exit:
        main(["config", "check", str(path), "--set", "run.seed=-1", "--set", "nonsense"])
    assert exit.value.code == 2
    err = capsys.readouterr().err
    said = ("nonsense", "run.seed", "learning_rat", "betas[0]", "betas[1]", "fsdq2")
    assert all(word in err for word in said)
    assert err.count("\n") == len(said)


@pytest.mark.parametrize("case", CASES[:1] + CASES[-3:], ids=lambda case: case.name)
def test_the_command_says_it_without_a_traceback(case: Case, corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    case.write(path, corpus)
    command = [sys.executable, "-m", "torchlayout", *arguments(case, path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert case.says in done.stderr


def test_a_wrong_command_line_gives_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["config", "check", "x.toml", "--wrold", "2"])
    assert exit.value.code == 2
    assert "--wrold" in capsys.readouterr().err
