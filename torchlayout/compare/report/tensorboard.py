"""The report for TensorBoard, in <study>/report_tensorboard: a table of layouts (HParams), the text, the figures.

`tensorboard --logdir STUDY` also overlays the curves of the runs, each from its own event file. The files are written
record by record with TensorBoard's own classes: torch's SummaryWriter would load torch, which the driver of a study
does without, and start a thread for each of 1,000 layouts.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from torchlayout.compare.report.document import LayoutResult, Report
from torchlayout.compare.report.figures import Drawn
from torchlayout.compare.report.text import STATUS_WORDS

METRICS = {
    "step_seconds": "step time (s)",
    "tokens_per_second": "tokens/s",
    "speed_ratio": "speed against the baseline",
    "mfu": "MFU",
    "hfu": "HFU",
    "peak_memory_gib": "peak memory (GiB)",
    "data_fraction": "waits for data",
    "bubble_fraction": "bubble of the schedule",
    "loss_difference": "loss difference",
}
HParam = int | float | bool | str


def write(report: Report, markdown: str, figures: Iterable[Drawn], directory: Path) -> None:
    """Replaces the folder by one that holds this report."""
    half = directory.with_name(f".{directory.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    now = time.time()
    _events(half, now, _report(report, markdown, figures))
    names: set[str] = set()
    for layout in report.layouts:
        name = _folder(layout.label, names)
        names.add(name)
        _events(half / name, now, _session(layout, now))
    shutil.rmtree(directory, ignore_errors=True)
    half.rename(directory)


def _events(directory: Path, now: float, summaries: Iterable[Summary]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"events.out.tfevents.{int(now)}.report").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        for summary in summaries:
            writer.write(Event(wall_time=now, step=0, summary=summary).SerializeToString())


def _folder(label: str, taken: set[str]) -> str:
    """A folder name for a label, which may be anything where it names no layout."""
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", label).lstrip(".")[:100] or "layout"
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _report(report: Report, markdown: str, figures: Iterable[Drawn]) -> Iterator[Summary]:
    choices: dict[str, set[HParam]] = {}
    for layout in report.layouts:
        for name, value in _hparams(layout).items():
            choices.setdefault(name, set()).add(value)
    hparams = [summary_v2.HParam(name, _domain(values)) for name, values in choices.items()]
    known = {tag for layout in report.layouts for tag in _metrics(layout)}
    metrics = [summary_v2.Metric(tag, display_name=shown) for tag, shown in METRICS.items() if tag in known]
    yield summary_v2.hparams_config_pb(hparams=hparams, metrics=metrics)
    text = make_tensor_proto([markdown.encode()], dtype="string", shape=[1])
    yield Summary(
        value=[Summary.Value(tag="report", metadata=create_summary_metadata("Report", ""), tensor=text)],
    )
    for figure in figures:
        image = Summary.Image(encoded_image_string=figure.png, height=1, width=1, colorspace=4)
        yield Summary(value=[Summary.Value(tag=f"figures/{figure.name}", image=image)])


def _domain(values: set[HParam]) -> summary_v2.Domain | None:
    # TensorBoard takes one type in a domain and no mixture; a domain of hundreds is no filter that one can use.
    if len(values) > 64 or len({type(value) for value in values}) > 1:
        return None
    return summary_v2.Discrete(sorted(values))


def _hparams(layout: LayoutResult) -> dict[str, HParam]:
    return {"label": layout.label, "status": STATUS_WORDS[layout.status], **layout.axes}


def _metrics(layout: LayoutResult) -> dict[str, float]:
    memory, parity = layout.peak_memory_bytes, layout.parity
    values = {
        "step_seconds": layout.step_seconds.median if layout.step_seconds else None,
        "tokens_per_second": layout.tokens_per_second.median if layout.tokens_per_second else None,
        "speed_ratio": layout.ratio.value if layout.ratio else None,
        "mfu": layout.mfu,
        "hfu": layout.hfu,
        "peak_memory_gib": None if memory is None else memory / 2**30,
        "data_fraction": layout.data_seconds_fraction,
        "bubble_fraction": layout.bubble_fraction,
        "loss_difference": parity.loss_difference if parity else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _session(layout: LayoutResult, now: float) -> Iterator[Summary]:
    # The label is the identity of a row: TensorBoard would merge layouts of equal choices into one.
    yield summary_v2.hparams_pb(_hparams(layout), trial_id=layout.label, start_time_secs=now)
    for tag, value in _metrics(layout).items():
        yield Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    status = api_pb2.STATUS_SUCCESS if layout.status == "ok" else api_pb2.STATUS_FAILURE
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=now)
    data = plugin_data_pb2.HParamsPluginData(session_end_info=end)
    about = metadata.create_summary_metadata(data)
    yield Summary(value=[Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)])
