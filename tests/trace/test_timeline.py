"""Lanes of the timeline, its pictures, the merged trace and TensorBoard's own curves."""

from __future__ import annotations

import gzip
import json
import xml.etree.ElementTree as xml
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harness.traces import Traced, device_pipeline, host_pipeline, pipeline_group, write_all
from torchlayout.layout import Layout
from torchlayout.schedule import actions, timeline
from torchlayout.trace.activity import Work
from torchlayout.trace.analyse import Analysis, analyse
from torchlayout.trace.board import write_board
from torchlayout.trace.breakdown import cut_steps
from torchlayout.trace.figure import _bars, draw
from torchlayout.trace.read import read_events
from torchlayout.trace.timeline import DOING, KINDS, TRANSFERRING, timeline_document


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    """1F1B on two devices with four micro-batches, a hundred microseconds a forward and a backward each."""
    played = timeline(actions(Layout.parse("pp2+1f1b"), 4), lambda action: 1.0)
    traces = device_pipeline(played.ranks, 12)
    for trace in traces:
        trace.mark("optimizer", 1100, 1200)
        trace.kernel("multi_tensor_apply_kernel", 1100, 1150, launched=1101)
    return analyse(write_all(tmp_path / "traces", traces))


@pytest.fixture
def document(analysis: Analysis) -> dict[str, Any]:
    return timeline_document(analysis.activities, analysis.steps)


def test_a_lane_covers_its_step_once(document: dict[str, Any]) -> None:
    (step,) = document["steps"]
    assert [lane["rank"] for lane in step["lanes"]] == [0, 1]
    for lane in step["lanes"]:
        assert lane["events"] == sorted(lane["events"])
        done = [event for event in lane["events"] if event[2] == DOING]
        assert done[0][0] == 0
        assert done[-1][0] + done[-1][1] == pytest.approx(step["seconds"] * 1e6)
        for one, other in pairwise(done):
            assert one[0] + one[1] == pytest.approx(other[0])
        for start, duration, track, kind, name, *_ in lane["events"]:
            assert 0 <= start <= start + duration <= step["seconds"] * 1e6 + 1e-6
            assert track in (DOING, TRANSFERRING)
            assert kind < len(KINDS)
            assert name < len(document["names"])


def test_each_micro_batch_is_on_the_lane_of_its_stage(document: dict[str, Any]) -> None:
    for rank, lane in enumerate(document["steps"][0]["lanes"]):
        for kind in ("forward", "backward"):
            found = [event for event in lane["events"] if KINDS[event[3]] == kind]
            assert [event[5:7] for event in found] == [[rank, number] for number in range(4)]
            assert [event[1] for event in found] == [100] * 4


def test_transfers_are_on_a_track_of_their_own_hidden_ones_too(document: dict[str, Any]) -> None:
    lane = document["steps"][0]["lanes"][1]
    moved = [event for event in lane["events"] if event[2] == TRANSFERRING]
    assert {document["names"][event[4]] for event in moved} == {"recv (pp)"}
    assert moved[0][:2] == [0, 100]


def test_kinds_that_were_charged_are_drawn(document: dict[str, Any]) -> None:
    found = {KINDS[event[3]] for lane in document["steps"][0]["lanes"] for event in lane["events"]}
    assert found == {"forward", "backward", "bubble", "optimizer", "idle", "communication"}


@pytest.mark.parametrize("label", ["pp2+interleaved2", "pp2+zbv"])
def test_split_backwards_and_several_stages_have_their_kinds(label: str, tmp_path: Path) -> None:
    played = timeline(actions(Layout.parse(label), 4), lambda action: 1.0)
    made = analyse(write_all(tmp_path, host_pipeline(played.ranks, played.makespan)))
    events = [
        event
        for lane in timeline_document(made.activities, made.steps)["steps"][0]["lanes"]
        for event in lane["events"]
        if event[6] >= 0
    ]
    assert len(events) == len(played.events)
    assert {event[5] for event in events} == {0, 1, 2, 3}
    assert ("weight" in {KINDS[event[3]] for event in events}) == (label == "pp2+zbv")


def test_of_micro_batches_that_overlap_the_first_has_the_moment(tmp_path: Path) -> None:
    trace = Traced(groups=pipeline_group(1))
    trace.mark("step", 0, 100, step=1)
    trace.kernel("ampere_sgemm_32x32", 0, 100)
    made = analyse(write_all(tmp_path, [trace]))
    (activity,) = made.activities
    zero = activity.steps[0].start
    spans = ((0, 40_000), (10_000, 20_000), (30_000, 60_000), (60_000, 70_000))
    work = tuple(Work("forward", 0, number, zero + a, zero + b) for number, (a, b) in enumerate(spans))
    activity = replace(activity, work=work)
    (lane,) = timeline_document([activity], cut_steps([activity]))["steps"][0]["lanes"]
    assert [(event[0], event[1], event[6]) for event in lane["events"]] == [
        (0, 40, 0),
        (40, 20, 2),
        (60, 10, 3),
        (70, 30, -1),
    ]


def test_the_analysis_is_written_as_files_that_are_whole(analysis: Analysis, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    analysis.write(folder)
    names = {"breakdown.json", "timeline.json.gz", "timeline.png", "timeline.svg", "merged.json.gz"}
    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / "breakdown.json").read_text()) == analysis.document
    read_back = json.loads(gzip.decompress((folder / "timeline.json.gz").read_bytes()))
    assert read_back == timeline_document(analysis.activities, analysis.steps)
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert xml.parse(folder / "timeline.svg").getroot().tag.endswith("svg")


def test_the_same_traces_give_the_same_bytes(analysis: Analysis, tmp_path: Path) -> None:
    for name in ("one", "other"):
        analysis.write(tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name


def test_the_merged_trace_has_a_process_for_each_rank_and_is_read_by_ourselves(
    analysis: Analysis, tmp_path: Path
) -> None:
    analysis.write(tmp_path / "out")
    merged = tmp_path / "out" / "merged.json.gz"
    events = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
    again: list[dict[str, Any]] = []
    assert read_events(merged, {}, again.append) is None
    assert again == events
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {0: "rank 0", 1: "rank 1"}
    drawn = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in drawn} == {0, 1}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 and event["args"]["step"] == 1 for event in drawn)
    assert "forward 3 (stage 1)" in {event["name"] for event in drawn}


def test_what_is_too_short_to_see_is_drawn_as_what_takes_most_of_it() -> None:
    long, short = [[0, 50, 0, 1, 0, 0, 3, 0], [50, 50, 0, 1, 0, 0, 4, 0]], [[100, 1, 0, 2, 0, -1, -1, 0]]
    short += [[101 + 2 * number, 2, 0, 5, 0, -1, -1, 0] for number in range(2)] + [[105, 1, 0, 2, 0, -1, -1, 0]]
    after = [[106, 10, 0, 2, 0, -1, -1, 0], [116.5, 20, 0, 2, 0, -1, -1, 0], [150, 20, 0, 2, 0, -1, -1, 0]]
    assert _bars([*long, *short, *after], 10) == [
        (0, 50, 1),
        (50, 100, 1),
        (100, 106, 5),
        (106, 136.5, 2),
        (150, 170, 2),
    ]
    assert _bars([], 10) == []


def large(lanes: int, events: int, steps: int = 1) -> dict[str, Any]:
    """A timeline document of many short events."""
    each = 1e6 / events
    made = [[number * each, each, number % 2, number % 9, 0, 0, number, 0] for number in range(events)]
    rows = [{"rank": rank, "events": made} for rank in range(lanes)]
    written = [{"step": number, "seconds": 1.0, "lanes": rows} for number in range(steps)]
    return {"version": 1, "kinds": list(KINDS), "names": ["x"], "steps": written}


def test_256_lanes_do_not_make_a_figure_that_no_viewer_opens(tmp_path: Path) -> None:
    draw(large(256, 1000), tmp_path)
    width, height = size(tmp_path / "timeline.png")
    assert width < 3000
    assert height < 3000
    assert (tmp_path / "timeline.svg").stat().st_size < 16e6
    assert "192 more ranks not drawn" in (tmp_path / "timeline.svg").read_text()


def test_many_steps_do_not_make_a_figure_that_no_viewer_opens(tmp_path: Path) -> None:
    draw(large(2, 20, steps=100), tmp_path)
    assert size(tmp_path / "timeline.png")[0] < 3000


def size(png: Path) -> tuple[int, int]:
    """Width and height in pixels."""
    header = png.read_bytes()[16:24]
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")


def test_names_that_a_figure_could_take_for_formulas_do_no_harm(tmp_path: Path) -> None:
    trace = Traced(groups=[("1", "mesh_$tp<b>", [0, 1])])
    trace.mark("step", 0, 100, step=1)
    trace.kernel("void k<$\\frac{1}{$>(<script>alert(1)</script>)", 0, 50)
    trace.nccl("all$reduce<i>", 60, 70, "1")
    made = analyse(write_all(tmp_path / "$traces_<1>", [trace]))
    made.write(tmp_path / "out")
    assert "<script>" not in (tmp_path / "out" / "timeline.svg").read_text()
    assert xml.parse(tmp_path / "out" / "timeline.svg") is not None


def curves(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    found.Reload()
    return found


def test_tensorboard_reads_every_share_as_a_curve_and_the_figure_as_an_image(
    analysis: Analysis, tmp_path: Path
) -> None:
    analysis.write(tmp_path / "out")
    picture = (tmp_path / "out" / "timeline.png").read_bytes()
    write_board(analysis.document, tmp_path / "board", picture)
    found = curves(tmp_path / "board")
    mean = analysis.document["mean"]
    assert set(found.Tags()["scalars"]) == {f"trace/{name}" for name in mean}
    for name, part in mean.items():
        (point,) = found.Scalars(f"trace/{name}")
        assert (point.step, point.value) == (1, pytest.approx(part))
    (image,) = found.Images("trace/timeline")
    assert image.encoded_image_string == picture
    assert (image.width, image.height) == size(tmp_path / "out" / "timeline.png")


def test_a_second_analysis_replaces_the_first_of_its_window_alone(analysis: Analysis, tmp_path: Path) -> None:
    folder = tmp_path / "board"
    write_board(analysis.document, folder, None)
    later = analysis.document | {"steps": [analysis.document["steps"][0] | {"step": 11}]}
    write_board(later, folder, None)
    write_board(analysis.document, folder, None)
    other = folder / "events.out.tfevents.1.host"
    other.touch()
    assert len(list(folder.iterdir())) == 3
    assert [point.step for point in curves(folder).Scalars("trace/compute/gemm")] == [1, 11]


def test_without_steps_nothing_is_added_to_tensorboard(tmp_path: Path) -> None:
    write_board({"steps": []}, tmp_path / "board", None)
    assert not (tmp_path / "board").exists()
