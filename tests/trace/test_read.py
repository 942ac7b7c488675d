"""Traces as files: whole, cut off, damaged, and what is none."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.traces import Traced, write_trace
from torchlayout.errors import InputError
from torchlayout.trace import read
from torchlayout.trace.analyse import analyse
from torchlayout.trace.rank import read_rank
from torchlayout.trace.read import read_events, trace_files

EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "cpu_op", "name": 'a "quoted" \\ name, { [ ] }', "ts": 1.5, "dur": 2, "args": {"deep": [[{}]]}},
    {"ph": "M", "name": "process_name", "args": {"name": "\u00e9\u4e2d\U0001f600"}},
    {"ph": "X", "cat": "kernel", "name": "void k<float>(int)", "ts": 12345678.901, "dur": 0.25},
]


def events_of(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], str | None]:
    """(events, header, what was said of an early end)."""
    events: list[dict[str, Any]] = []
    header: dict[str, Any] = {}
    said = read_events(path, header, events.append)
    return events, header, said


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 2**22])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("form", ["before", "after", "array", "spaced"])
def test_every_form_is_read_however_it_is_cut(
    form: str, name: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "CHUNK_BYTES", chunk)
    facts: dict[str, Any] = {"schemaVersion": 1, "base": 1234567890123456789, "info": {"ranks": [0, 1]}, "none": None}
    document: Any = {
        "before": facts | {"traceEvents": EVENTS},
        "after": {"traceEvents": EVENTS} | facts,
        "array": EVENTS,
        "spaced": {"traceEvents": EVENTS} | facts,
    }[form]
    text = json.dumps(document, indent="\t" if form == "spaced" else None, ensure_ascii=form == "before").encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    events, header, said = events_of(path)
    assert events == EVENTS
    assert header == ({} if form == "array" else facts)
    assert said is None


@pytest.mark.parametrize("chunk", [5, 2**22])
def test_a_text_that_was_cut_off_anywhere_gives_the_events_before(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "CHUNK_BYTES", chunk)
    whole = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "traceName": "x"}).encode()
    ends = [whole.index(b"}, {") + 1]
    ends += [whole.index(b"}, {", ends[0]) + 1, whole.index(b"}], ") + 1]
    for length in range(1, len(whole)):
        path = tmp_path / "t.json"
        path.write_bytes(whole[:length])
        events, _, said = events_of(path)
        assert events == EVENTS[: sum(end <= length for end in ends)]
        assert said == f"{path} ends in the middle of an event; what comes before was read"


def test_a_compressed_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    many = [event | {"ts": number * 1.37} for number in range(4000) for event in EVENTS[:1]]
    packed = gzip.compress(json.dumps({"traceEvents": many}).encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    events, _, said = events_of(path)
    assert 1000 < len(events) < 4000
    assert events == many[: len(events)]
    assert said is not None


def test_a_compressed_file_that_was_damaged_is_read_as_far_as_it_is_sound(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps({"traceEvents": EVENTS * 3000}).encode()))
    packed[len(packed) // 2 :] = b"\xff" * (len(packed) // 2)
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    assert events_of(path)[2] is not None


def test_what_follows_a_whole_trace_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(json.dumps({"traceEvents": EVENTS}).encode() + b"}}} garbage \xff")
    assert events_of(path)[0] == EVENTS


@pytest.mark.parametrize("content", [b"", b"  \n", b"\x1f\x8b", b"hello", b"12", b'"text"', b"\x00\x01\x02", b"PK\3\4"])
def test_what_is_no_trace_is_refused_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"t\.json"):
        read_rank(path)


@pytest.mark.parametrize("text", ["{}", "[]", '{"traceEvents": []}', '{"traceEvents": [1, null, "x", []]}', '{"a": 1}'])
def test_a_trace_of_nothing_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError, match="holds no operator, kernel or range"):
        read_rank(path)


def test_a_trace_that_was_cut_off_before_its_first_event_is_refused_for_that(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X"')
    with pytest.raises(InputError, match="ends before its first operator, kernel or range"):
        read_rank(path)


def test_events_that_are_no_array_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its traceEvents are no array"):
        events_of(write_trace(tmp_path / "t.json", {"traceEvents": {"a": 1}}))


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(InputError, match="cannot be read: "):
            events_of(path)


def test_a_value_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(read, "LONGEST", 10_000)
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"name": "' + "x" * 50_000)
    with pytest.raises(InputError, match=r"is no trace: what begins '{\"name\": \"xxx"):
        events_of(path)


def test_a_value_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + "[" * 200_000)
    with pytest.raises(InputError, match="nested too deeply"):
        events_of(path)


def test_names_hold_control_characters_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    event = b'{"ph": "X", "cat": "cpu_op", "name": "aten::\x01\t\xff\xc3", "ts": 1, "dur": 2, "tid": 1}'
    path.write_bytes(b'{"traceEvents": [' + event + b"]}")
    assert read_rank(path).names == ["aten::??\ufffd\ufffd"]


BROKEN = (
    {"name": "aten::mm", "ts": 1.0, "dur": float("nan")},
    {"name": "aten::mm", "ts": float("inf"), "dur": 1.0},
    {"name": "aten::mm", "ts": "yesterday", "dur": 1.0},
    {"name": "aten::mm", "dur": 1.0},
    {"ts": 1.0, "dur": 1.0},
    {"name": "aten::mm", "ts": 5.0, "dur": -1.0},
    {"name": "aten::mm", "ts": None, "dur": 1.0},
    {"name": "aten::mm", "ts": 9.2e15, "dur": 9.2e15},
    {"name": "aten::mm", "ts": 1e300, "dur": 1},
    {"name": "aten::mm", "ts": [1], "dur": 1},
)


@pytest.mark.parametrize("broken", BROKEN)
def test_an_event_without_a_usable_time_or_name_is_left_out_and_counted(broken: dict[str, Any], tmp_path: Path) -> None:
    sound = [{"name": f"aten::{name}", "ts": at, "dur": 2} for name, at in (("add", "3"), ("mul", 7))]
    events = [{"ph": "X", "cat": "cpu_op", "tid": 1, "pid": 1} | event for event in (sound[0], broken, sound[1])]
    path = write_trace(tmp_path / "t.json", {"traceEvents": events})
    trace = read_rank(path)
    assert trace.ops.spans().tolist() == [[3000, 5000], [7000, 9000]]
    assert [trace.names[name] for name in trace.ops.name] == ["aten::add", "aten::mul"]
    assert trace.notes == (f"{path}: 1 events have no usable time or name and were left out",)


def test_a_header_of_the_wrong_kind_says_nothing(tmp_path: Path) -> None:
    spread = {"rank": "first", "world_size": None, "pg_config": [{"pg_name": 1, "ranks": ["a", None]}, 5]}
    header = {"distributedInfo": spread, "baseTimeNanoseconds": "noon", "deviceProperties": [3], "host_name": None}
    document = Traced().document() | header
    document["traceEvents"] = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "tid": 1}]
    trace = read_rank(write_trace(tmp_path / "t.json", document))
    assert (trace.rank, trace.world, trace.device_name) == (0, None, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = (
    "correlation", "Collective name", "In msg nelems", "dtype", "Process Group Name", "Process Group Ranks", "Src Rank",
    "Input Dims", "Input type", "Concrete Inputs", "Process Group Description",
)  # fmt: skip
EVENT = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "cpu_op", "user_annotation", "cuda_runtime"])},
    optional={
        "name": st.sampled_from(["ncclDevKernel_AllReduce", "c10d::send", "gloo:send", "torchlayout:step step=1"])
        | JSON,
        "ts": st.integers(0, 100) | JSON,
        "dur": st.integers(0, 100) | JSON,
        "tid": JSON,
        "args": st.dictionaries(st.sampled_from(ARGUMENTS), JSON, max_size=4) | JSON,
    },
)
HEADER = st.dictionaries(st.sampled_from(["distributedInfo", "host_name", "deviceProperties"]), JSON, max_size=2)


@settings(max_examples=80)
@given(st.lists(EVENT, max_size=5), HEADER)
def test_whatever_json_a_trace_holds_is_analysed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], header: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    write_trace(path, header | {"traceEvents": events})
    try:
        analyse(path)
    except InputError as error:
        assert "any.json" in str(error)  # noqa: PT017


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A trace of 50 MB takes its columns, 40 bytes an event, and twice the text of a chunk of 4 MB."""
    path = tmp_path / "t.json"
    events = 20_000
    padding = "x" * 2400
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for number in range(events):
            file.write(
                f'{{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": {number}.5, "dur": 0.25, '
                f'"args": {{"note": "{padding}"}}}}{"," if number < events - 1 else ""}'
            )
        file.write("]}")
    assert path.stat().st_size > 48e6
    tracemalloc.start()
    try:
        assert len(read_rank(path).ops) == events
        assert tracemalloc.get_traced_memory()[1] < 25e6
    finally:
        tracemalloc.stop()


def test_the_files_of_ranks_are_those_of_the_profiler_or_else_any_trace(tmp_path: Path) -> None:
    for name in ("breakdown.json", "timeline.json.gz", "merged.json.gz", "b.json", "a.json.gz", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in trace_files(tmp_path)] == ["a.json.gz", "b.json"]
    (tmp_path / "rank0.host.pt.trace.json.gz").touch()
    assert [path.name for path in trace_files(tmp_path)] == ["rank0.host.pt.trace.json.gz"]
