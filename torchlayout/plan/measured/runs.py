"""Measured training runs of other people, one row each, as jobs that the planner can price."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ValidationError

from torchlayout.config import ModelConfig
from torchlayout.errors import InputError
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.plan.job import Job
from torchlayout.plan.measured.cells import Cells, read_cells
from torchlayout.plan.software import Software
from torchlayout.plan.software import names as profiles
from torchlayout.tables import sentences

COLUMNS = (
    "source", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gpus", "gpu", "precision",
    "tp", "sp", "pp", "vp", "cp", "dp", "sharding", "mbs", "gbs", "recompute", "attention", "norm", "step_time_s",
    "status",
)  # fmt: skip
"""What a file of measured runs has to have; shared/measured/README.md says what each is."""
OPTIONAL = ("tok_s_gpu", "mfu", "mem_gb", "trust", "note")
Status = Literal["ok", "oom", "error"]
SHARDINGS = ("none", "zero0", "zero1", "zero2", "zero3", "hsdp")
ATTENTIONS = ("unfused", "fused-softmax", "flash1", "flash2", "flash")
HSDP_RANKS = 8
"""Ranks that hsdp shards over: the GPUs of a node."""
PEAK = re.compile(r"(?:amp_)?(bf16|fp16)\b(.*)")


@dataclass(frozen=True, eq=False)
class Run:
    """A measured run: what was run, and what came of it; times in seconds, memory in GiB, MFU in percent."""

    place: str
    source: str
    model: str
    gpu: str
    gpus: int
    job: Job
    hardware: Hardware
    software: Software
    status: Status
    step_seconds: float | None
    mfu: float | None
    memory_gb: float | None
    """As the `mem_gb` column states it, whose GB are 2^30 bytes that torch has reserved on the first pipeline rank."""
    trust: str
    note: str
    cells: Mapping[str, str]
    """The row as it stands in the file."""

    @property
    def trusted(self) -> bool:
        """Whether its time counts."""
        return self.trust == "ok"


def read_runs(path: Path, hardware: Hardware | None = None, software: Software | None = None) -> list[Run]:
    """The runs in a CSV file; hardware and software, where given, stand for what the rows name.

    Raises InputError with a sentence that names the file and line for the first row that can't be.
    """
    return [_run(cells, hardware, software) for cells in read_cells(path, COLUMNS, OPTIONAL)]


def _run(cells: Cells, hardware: Hardware | None, software: Software | None) -> Run:
    hardware = hardware or _hardware(cells)
    software = software or _software(cells)
    status = cast(Status, cells.word("status", ("ok", "oom", "error")))
    seconds, memory = cells.number("step_time_s"), cells.number("mem_gb")
    if status == "ok" and seconds is None and memory is None:
        raise cells.wrong("step_time_s", "says nothing of a run that ended well; legal: seconds, or mem_gb")
    return Run(
        place=cells.place,
        source=cells.text("source"),
        model=cells.text("model"),
        gpu=cells.text("gpu"),
        gpus=cells.whole("gpus"),
        job=_job(cells, software),
        hardware=hardware,
        software=software,
        status=status,
        step_seconds=seconds,
        mfu=cells.number("mfu"),
        memory_gb=memory,
        trust=cells.row["trust"] or "ok",
        note=cells.row["note"],
        cells={**cells.row, "software": software.name},
    )


def _hardware(cells: Cells) -> Hardware:
    name = cells.text("gpu")
    try:
        return _device(name)
    except InputError as error:
        rule = str(error).split("; ", 1)[-1]
        raise cells.wrong("gpu", f"is no device that is known; {rule}; or give --hardware") from error


@cache
def _device(name: str) -> Hardware:
    return Hardware.load(name)


def _software(cells: Cells) -> Software:
    if profile := Software.of_row(cells.text("source"), cells.row["note"]):
        return profile
    raise cells.wrong("source", f"names no stack with a profile; give --software, legal: {', '.join(profiles())}")


def _job(cells: Cells, software: Software) -> Job:
    layout, batch = _layout(cells, software), cells.whole("gbs")
    if layout.world != cells.whole("gpus"):
        product = f"tp x pp x cp x dp = {layout.tensor} x {layout.pipeline} x {layout.context} x {layout.data_ranks}"
        raise cells.wrong("gpus", f"is not {product}; legal: {layout.world}")
    if batch % (unit := layout.data_ranks * layout.micro_batch):
        raise cells.wrong("gbs", f"is not a multiple of dp x mbs; legal: multiples of {unit}")
    precision, reduce = _formats(cells)
    return Job(
        model=_model(cells, software),
        sequence=cells.whole("seq"),
        batch=batch,
        layout=layout,
        attention=cells.word("attention", ATTENTIONS),
        precision=precision,
        loss="plain",
        reduce=reduce,
    )


def _formats(cells: Cells) -> tuple[str, str]:
    """The format whose peak counts, and the one that gradients are reduced in."""
    if not (found := PEAK.match(cells.text("precision"))):
        raise cells.wrong("precision", "names no format; legal: bf16 or fp16, amp_ before it, anything behind it")
    return found.group(1), found.group(1) if found.group(2) == "/PURE" else "fp32"


def _model(cells: Cells, software: Software) -> ModelConfig:
    note = cells.row["note"]
    tied = "tied_emb True" in note or (software.tied_head and "tied_emb False" not in note)
    sizes = (cells.whole(name) for name in ("vocab", "hidden", "ffn", "layers", "heads", "kv_heads"))
    try:
        return _config(*sizes, tied)
    except ValidationError as error:
        problems = sentences(error, "model", ModelConfig)
        raise InputError(*(f"{cells.place}: {problem}" for problem in problems)) from error


@cache
def _config(vocabulary: int, hidden: int, inner: int, layers: int, heads: int, groups: int, tied: bool) -> ModelConfig:
    """The one value of a model: prices of its pieces are remembered by it."""
    return ModelConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        tie_word_embeddings=tied,
    )


def _layout(cells: Cells, software: Software) -> Layout:
    data, sharding, tensor = cells.whole("dp"), cells.word("sharding", SHARDINGS), cells.whole("tp")
    shard = {"none": 1, "zero0": 1, "hsdp": min(HSDP_RANKS, data)}.get(sharding, data)
    if data % shard:
        raise cells.wrong("dp", f"can't be split over nodes by hsdp; legal: multiples of {HSDP_RANKS}")
    stages = cells.whole("vp")
    fields: dict[str, Any] = {
        "pipeline": cells.whole("pp"),
        "replicate": data // shard,
        "shard": shard,
        "context": cells.whole("cp"),
        "tensor": tensor,
        "micro_batch": cells.whole("mbs"),
        "sequence_parallel": cells.switch("sp") and tensor > 1,  # no-op where tp = 1
        "schedule": "interleaved" if stages > 1 else "1f1b",
        "virtual_stages": stages,
        "recompute": _recompute(cells, software),
        "zero": {"zero1": 1, "zero2": 2}.get(sharding, 3 if shard > 1 else None),
        "norm": cells.word("norm", ("eager", "fused", "")) or "fused",
    }
    try:
        return Layout(**fields)
    except InputError as error:
        raise InputError(*(f"{cells.place}: {problem}" for problem in error.problems)) from error


def _recompute(cells: Cells, software: Software) -> str:
    how = cells.word("recompute", ("none", "full", "selective"))
    if how == "selective":
        return "ckptattn" if software.selective_every == 1 else f"ckpt{software.selective_every}"
    return {"none": "none", "full": "ckpt"}[how]
