from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

from torchlayout.train.board import Board


def test_a_full_disk_ends_the_view_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Board(tmp_path, Console(), steps_done=0, texts={"layout": "fsdp1"})
    board.scalars({"loss": 1.0, "mfu": None}, 1)

    def full(*arguments: Any, **keywords: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    board.scalars({"loss": 1.0}, 2)
    board.scalars({"loss": 1.0}, 3)
    board.close({"label": "fsdp1"}, {"loss": 1.0})
    assert capsys.readouterr().out == "TensorBoard gets no more of this run: No space left on device\n"
