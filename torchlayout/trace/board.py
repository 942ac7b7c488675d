"""Every share as a curve in TensorBoard's own dashboards, and the timeline as an image there.

Written record by record with TensorBoard's own classes, as torch's SummaryWriter would load torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from torchlayout.files import replacing

SUFFIX = "trace"


def write_board(document: Mapping[str, Any], folder: Path, picture: bytes | None) -> None:
    """Add the steps of a breakdown to the run whose event files are in this folder.

    An earlier analysis of the same window is replaced. picture: the timeline as PNG, shown at the first step.
    """
    if not document["steps"]:
        return
    window = document["steps"][0]["step"]
    now = time.time()
    suffix = f".{SUFFIX}{window}"
    for old in folder.glob(f"events.out.tfevents.*{suffix}"):
        old.unlink()
    with replacing(folder / f"events.out.tfevents.{int(now)}{suffix}") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        for step, summary in _summaries(document, picture):
            writer.write(Event(wall_time=now, step=step, summary=summary).SerializeToString())


def _summaries(document: Mapping[str, Any], picture: bytes | None) -> Iterator[tuple[int, Summary]]:
    for step in document["steps"]:
        for name in sorted({name for rank in step["ranks"] for name in rank["shares"]}):
            part = mean(rank["shares"].get(name, 0.0) / rank["seconds"] for rank in step["ranks"])
            yield step["step"], Summary(value=[Summary.Value(tag=f"trace/{name}", simple_value=part)])
        overlaps = [rank["overlap"] for rank in step["ranks"] if rank["overlap"] is not None]
        if overlaps:
            yield step["step"], Summary(value=[Summary.Value(tag="trace/overlap", simple_value=mean(overlaps))])
    if picture is not None:
        # A PNG's first block says how large it is.
        width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
        image = Summary.Image(encoded_image_string=picture, height=height, width=width, colorspace=4)
        yield document["steps"][0]["step"], Summary(value=[Summary.Value(tag="trace/timeline", image=image)])
