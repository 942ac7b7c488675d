from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from torchlayout.errors import InputError
from torchlayout.records import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "runs" / "one").create()


def test_numbers_come_back_in_full_precision(run: RunDirectory) -> None:
    record = {"step": 1, "loss": 0.1 + 0.2, "tokens": 2**53 + 1, "peak_memory_bytes_by_rank": [1, 2]}
    run.append(record)
    assert run.metrics() == [record]


def test_a_line_can_be_read_as_soon_as_it_is_written(run: RunDirectory) -> None:
    for step in (1, 2, 3):
        run.append({"step": step})
        assert len(RunDirectory(run.path).metrics()) == step


def test_the_last_record_of_a_step_counts(run: RunDirectory) -> None:
    for step, loss in ((1, 5.0), (2, 4.0), (3, 3.0), (2, 4.5), (3, 3.5)):
        run.append({"step": step, "loss": loss})
    assert run.metrics() == [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.5}, {"step": 3, "loss": 3.5}]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_and_the_line_says_so(run: RunDirectory, value: float) -> None:
    run.append({"step": 1, "loss": value, "by_rank": [1.0, value]})
    line = run.metrics_path.read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 1,
        "loss": None,
        "by_rank": [1.0, None],
        "non_finite": True,
    }


def test_every_cut_of_the_last_line_leaves_the_others(run: RunDirectory) -> None:
    run.append({"step": 1, "loss": 5.0})
    run.append({"step": 2, "name": "π"})
    whole = run.metrics_path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) - 1):
        run.metrics_path.write_bytes(whole[:cut])
        assert run.metrics() == [{"step": 1, "loss": 5.0}]


def test_a_resumed_run_is_not_swallowed_by_a_half_written_line(run: RunDirectory) -> None:
    run.append({"step": 1})
    with run.metrics_path.open("ab") as file:
        file.write(b'{"step": 2, "lo')
    run.append({"step": 2})
    assert run.metrics() == [{"step": 1}, {"step": 2}]


def test_the_end_of_a_long_file_is_read_alone(run: RunDirectory) -> None:
    for step in range(1, 101):
        run.append({"step": step})
    end = run.metrics(last_bytes=200)
    assert end == run.metrics()[-len(end) :]
    assert 5 < len(end) < 100


def test_a_line_whose_step_is_no_number_is_none(run: RunDirectory) -> None:
    run.append({"step": 1})
    run.append({"step": ["1"]})
    run.append({"step": None})
    assert run.metrics() == [{"step": 1}]


def test_a_run_without_metrics_has_none(run: RunDirectory) -> None:
    assert run.metrics() == []


def test_the_facts_of_a_run_come_back(run: RunDirectory) -> None:
    run.write_run({"layout": "fsdp8", "world": 8})
    run.write_run({"layout": "fsdp8", "world": 8, "exit": "done", "mfu": math.nan})
    assert run.read_run() == {"layout": "fsdp8", "world": 8, "exit": "done", "mfu": None}
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_absent_or_broken_facts_are_said_in_a_sentence(run: RunDirectory) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        run.read_run()
    for text, says in (("{", "is not JSON"), ("[]", "does not hold one JSON object")):
        run.run_path.write_text(text)
        with pytest.raises(InputError, match=says):
            run.read_run()


def test_a_directory_that_cannot_be_made_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        RunDirectory(tmp_path / "file" / "run").create()
