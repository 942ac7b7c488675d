"""The run in TensorBoard: a view of it, whose failure must not end training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.tensorboard import SummaryWriter


class Board:
    """Writes TensorBoard's files until that fails (a full disk, say), says so once, and then no more."""

    def __init__(self, folder: Path, console: Console, *, steps_done: int, texts: Mapping[str, str]) -> None:
        self.console = console
        self.writer: SummaryWriter | None = None
        try:
            self.writer = SummaryWriter(str(folder), purge_step=steps_done + 1)
        except OSError as error:
            self._stop(error)
        for name, text in texts.items():
            self._write(lambda writer, name=name, text=text: writer.add_text(name, text))

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        """Add a point to each curve that has a value."""
        for name, value in values.items():
            if value is not None:
                self._write(lambda writer, name=name, value=value: writer.add_scalar(name, value, step))

    def close(self, choices: Mapping[str, Any], outcome: Mapping[str, float]) -> None:
        """Add the row of the HPARAMS tab, and end."""
        self._write(lambda writer: writer.add_hparams(dict(choices), dict(outcome), run_name="."))
        self._write(lambda writer: writer.close())

    def _write(self, call: Callable[..., None]) -> None:
        if self.writer is None:
            return
        try:
            call(self.writer)
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        self.writer = None
        self.console.print(f"TensorBoard gets no more of this run: {error.strerror or error}")
