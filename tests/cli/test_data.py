"""`torchlayout data`: what people and machines read, and how each verb exits."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchlayout.cli import main


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `torchlayout data ...`."""
    with pytest.raises(SystemExit) as exit:
        main(["data", *map(str, arguments)])
    out, err = capsys.readouterr()
    code = exit.value.code
    assert isinstance(code, int)
    return code, out, err


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(b"hello [b]world[/b] \xff\n" * 50)
    return path


def test_prepare_says_what_it_made_and_inspect_shows_it(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(capsys, "prepare", text, "--out", tmp_path / "out", "--workers", 1)
    assert code == 0
    assert "1,151 tokens in 1 documents, 257 ids (bytes), 1 token file" in out
    assert "50 invalid UTF-8 sequences were replaced" in out
    assert "MB/s" in err
    code, out, _ = command(capsys, "inspect", tmp_path / "out", "--length", 18)
    assert code == 0
    assert "1,151" in out
    assert "hello [b]world[/b]" in out


def test_json_is_one_object_on_stdout(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "prepare", text, "--out", tmp_path / "out", "--workers", 1, "--json")
    prepared = json.loads(out)
    assert code == 0
    assert (prepared["tokens"], prepared["documents"], prepared["invalid_utf8_replaced"]) == (1151, 1, 50)
    assert prepared["megabytes_per_second"] > 0
    code, out, _ = command(capsys, "inspect", tmp_path / "out", "--json", "--start", 1148)
    assert json.loads(out)["sample"] == "\ufffd\n\n--- end of document ---\n"
    code, out, _ = command(capsys, "verify", tmp_path / "out", "--json")
    assert json.loads(out) == {"directory": str(tmp_path / "out"), "files": 2, "faults": []}


def test_verify_exits_1_and_names_the_damaged_file(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(capsys, "prepare", text, "--out", tmp_path / "out", "--workers", 1)
    assert command(capsys, "verify", tmp_path / "out")[:2] == (
        0,
        f"{tmp_path / 'out'}: 2 of 2 files are as they were written\n",
    )
    shard = tmp_path / "out" / "shard-00000.tokens"
    raw = bytearray(shard.read_bytes())
    raw[700] ^= 1
    shard.write_bytes(raw)
    code, out, _ = command(capsys, "verify", tmp_path / "out")
    assert code == 1
    assert f"token file {shard} is damaged" in out
    assert "1 of 2 files" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["prepare", "nowhere.txt", "--out", "OUT"], "source nowhere.txt does not exist"),
        (["prepare", "--out", "OUT"], "nothing to prepare"),
        (["prepare", "TEXT", "--out", "OUT", "--tokenizer", "nowhere.json"], "tokenizer nowhere.json cannot be read"),
        (["prepare", "TEXT", "--out", "OUT", "--workers", "0"], "--workers 0 must be at least 1"),
        (["inspect", "OUT"], "make it with: torchlayout data prepare"),
        (["verify", "OUT"], "does not exist"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    filled = [{"OUT": str(tmp_path / "out"), "TEXT": str(text)}.get(word, word) for word in arguments]
    code, out, err = command(capsys, *filled)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_sample_beyond_the_corpus_is_refused(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "prepare", text, "--out", tmp_path / "out", "--workers", 1)
    code, _, err = command(capsys, "inspect", tmp_path / "out", "--start", 1151)
    assert (code, "beyond the 1151 tokens" in err) == (2, True)


def test_ctrl_c_exits_130_without_a_traceback_and_the_next_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_text(f'{{"text": "{"words that are the same in every document " * 5}"}}\n' * 60_000)
    arguments = ["data", "prepare", str(source), "--out", str(out), "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "torchlayout", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(out.glob("shard-*.tokens")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not list(out.glob(".*"))
    code, shown, _ = command(capsys, *arguments[1:], "--json")
    assert code == 0
    assert json.loads(shown)["documents"] == 60_000
    assert json.loads(shown)["token_files_kept"] > 0


def test_a_terminal_sees_a_bar_and_torch_is_not_loaded(text: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom torchlayout.cli import main\n"
        "try: main(sys.argv[1:])\nfinally: assert 'torch' not in sys.modules"
    )
    arguments = ["data", "prepare", str(text), "--out", str(tmp_path / "out"), "--workers", "1"]
    master, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=terminal,
        timeout=60,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:  # how Linux says that the terminal is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(master)
    assert done.returncode == 0, shown.decode()
    assert "100%" in shown.decode() or "━" in shown.decode()
    assert "preparing" in shown.decode()
    assert b"preparing" not in done.stdout
