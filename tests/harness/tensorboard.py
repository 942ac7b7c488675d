"""TensorBoard as a user starts it, for the tests of its tab."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.page import soon


class Board:
    """A TensorBoard that runs: its address, and what it has said on its standard error."""

    def __init__(self, port: int, logdir: Path, log: Path) -> None:
        self.address = f"http://127.0.0.1:{port}/"
        self.tab = f"{self.address}data/plugin_entry.html?name=layouts"
        self.logdir, self.log = logdir, log

    @property
    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text(encoding="utf-8")

    def answers(self) -> bool:
        """Whether it serves yet."""
        try:
            with urllib.request.urlopen(self.address, timeout=5):
                return True
        except OSError:
            return False


@contextmanager
def started(logdir: Path, log: Path) -> Iterator[Board]:
    """TensorBoard on a folder, on a free port, until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Beside the interpreter, so that the entry points of this environment are found and no other ones.
    program = Path(sys.executable).with_name("tensorboard")
    command = [program, "--logdir", logdir, "--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=log.parent)
    try:
        board = Board(port, logdir, log)
        assert soon(lambda: board.answers() or process.poll() is not None, 60), board.said
        assert process.poll() is None, board.said
        yield board
    finally:
        process.terminate()
        process.wait(timeout=30)
