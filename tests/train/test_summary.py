from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from torchlayout.errors import InputError
from torchlayout.records import RunDirectory
from torchlayout.train.summary import main, summary

GIB = 2**30
MEMORY = {"peak_memory_bytes": GIB}


def finished(path: Path, layout: str, *, weights: str = "aa", **changes: list[Any]) -> Path:
    """A run of three steps; `changes` replaces a column of its metrics."""
    columns = {
        "loss": [5.5, 5.25, 5.123456],
        "tokens_per_second": [10.0, 1000.0, 3000.0],
        "peak_memory_bytes": [GIB, 3 * GIB, 2 * GIB],
        "batch_digest": ["01", "02", "03"],
    } | changes
    directory = RunDirectory(path).create()
    directory.write_run({"layout": layout, "initial_weights_digest": weights})
    for index in range(3):
        directory.append({"step": index + 1} | {name: values[index] for name, values in columns.items()})
    return path


def rows(*directories: Path) -> list[list[str]]:
    """The cells of each row."""
    table = summary(directories)
    return [list(cells) for cells in zip(*(list(column.cells) for column in table.columns), strict=True)]


def test_a_row_has_losses_median_speed_without_the_first_step_and_the_highest_peak(tmp_path: Path) -> None:
    (row,) = rows(finished(tmp_path / "a", "fsdp2"))
    assert row == ["fsdp2", "3", "5.500000", "5.123456", "equal", "equal", "2,000", "3.00"]


def test_data_and_weights_are_judged_against_the_first_run(tmp_path: Path) -> None:
    one = finished(tmp_path / "one", "fsdp2")
    others = [
        finished(tmp_path / "same", "tp2"),
        finished(tmp_path / "data", "pp2", batch_digest=["01", "02", "04"]),
        finished(tmp_path / "weights", "dp2", weights="bb"),
    ]
    assert [row[4:6] for row in rows(one, *others)] == [
        ["equal", "equal"],
        ["equal", "equal"],
        ["DIFFERENT", "equal"],
        ["equal", "DIFFERENT"],
    ]


@pytest.mark.parametrize(
    ("kept", "judged"), [(slice(0, 2), "equal"), (slice(1, 3), "equal"), (slice(0, 0), "no common step")]
)
def test_data_is_judged_by_the_steps_that_both_have(tmp_path: Path, kept: slice, judged: str) -> None:
    one, other = finished(tmp_path / "one", "fsdp2"), finished(tmp_path / "two", "tp2")
    lines = RunDirectory(other).metrics_path.read_text().splitlines(keepends=True)[kept]
    RunDirectory(other).metrics_path.write_text("".join(lines))
    if not lines:
        RunDirectory(other).append({"step": 9, "loss": 1.0, "tokens_per_second": 1.0} | MEMORY | {"batch_digest": "09"})
    assert rows(one, other)[1][4] == judged


def test_runs_of_one_layout_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [finished(tmp_path / "one", "fsdp2"), finished(tmp_path / "two", "fsdp2"), finished(tmp_path / "3", "tp2")]
    assert [row[0] for row in rows(*runs)] == ["fsdp2 (one)", "fsdp2 (two)", "tp2"]


def test_a_loss_that_was_not_finite_is_said(tmp_path: Path) -> None:
    (row,) = rows(finished(tmp_path / "a", "fsdp2", loss=[5.5, 5.0, float("nan")]))
    assert row[2:4] == ["5.500000", "not finite"]


def test_a_folder_that_holds_no_run_is_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="holds no steps of a run"):
        summary([tmp_path])
    with pytest.raises(SystemExit) as exit:
        main([tmp_path / "nowhere"])
    assert exit.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_figure_is_cut_where_the_terminal_is_narrow(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", "pp2-dp2-fsdp2-tp2+sp+gpipe+mb4", loss=[0.015625] * 3)
    other = finished(tmp_path / "b", "fsdp8", weights="bb", batch_digest=["0"] * 3, tokens_per_second=[1.5e6] * 3)
    with (tmp_path / "out").open("w+") as file:
        Console(width=80, file=file).print(summary([run, other]))
        file.seek(0)
        printed = file.read()
    assert printed.count("DIFFERENT") == 2
    for words in ("0.015625", "1,500,000", "3.00", "tokens/s", "pp2-dp2"):
        assert words in printed
