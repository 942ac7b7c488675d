"""Run directories of runs that never were, with analysed traces in the agreed format, for the tests of the tab."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from torchlayout.layout import Layout

KINDS = ["forward", "backward", "weight", "bubble", "communication", "idle", "data", "optimizer", "checkpoint", "other"]
NAMES = [*KINDS, "nccl:all_gather", "nccl:reduce_scatter", "nccl:send"]
PHASES = {"forward": 0.8, "backward": 1.0, "reduce": 0.9, "optimizer": 0.6, "step": 1.0}
Event = list[float]


def run(folder: Path, label: str, *, seconds: float = 0.3, steps: int = 8, traced: tuple[int, ...] = (4, 5)) -> Path:
    """A finished run of 10 million tokens a second, with the traces of some steps analysed."""
    layout = Layout.parse(label)
    rng = random.Random(label)
    folder.mkdir(parents=True)
    facts = {"layout": label, "world": layout.world, "exit_reason": "done", "device_name": "NVIDIA A100-SXM4-80GB"}
    (folder / "run.json").write_text(json.dumps(facts))
    peaks = [int((30 + rng.random() * 8) * 2**30) for _ in range(layout.world)]
    lines = [json.dumps(_line(step, seconds, peaks)) + "\n" for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if traced:
        window(folder / "traces" / f"step_{traced[0]}", layout, traced, seconds, rng)
    return folder


def study(folder: Path, labels: tuple[str, ...], repeats: int = 1) -> Path:
    """The runs of a study, with the part of its report that the tab reads."""
    layouts = []
    for place, label in enumerate(labels):
        names = [f"{label}/repeat_{number}" for number in range(1, repeats + 1)]
        for name in names:
            run(folder / name, label, seconds=0.25 + 0.05 * place)
        parity = {"loss_difference": place * 2e-5, "loss_step": 7, "norm_difference": 1e-4, "tolerance": 5e-5}
        parity["within"] = parity["loss_difference"] <= parity["tolerance"]
        repeated = [{"directory": name, "status": "ok", "reason": None} for name in names]
        layouts.append({"label": label, "parity": parity, "fair": {"data": True}, "repeats": repeated})
    report = {"version": 1, "study": {"name": folder.name, "warmup_steps": 2}, "layouts": layouts}
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def window(folder: Path, layout: Layout, steps: tuple[int, ...], seconds: float, rng: random.Random) -> None:
    """The analysed traces of some steps of a run."""
    lanes = {step: [_lane(rank, layout, seconds, rng) for rank in range(layout.world)] for step in steps}
    folder.mkdir(parents=True)
    (folder / "breakdown.json").write_text(json.dumps(_breakdown(layout, seconds, lanes)))
    write_timeline(folder, lanes, seconds)


def write_timeline(folder: Path, lanes: dict[int, list[dict[str, Any]]], seconds: float) -> None:
    """timeline.json.gz of some steps."""
    entries = [{"step": step, "seconds": seconds, "lanes": found} for step, found in lanes.items()]
    content = {"version": 1, "kinds": KINDS, "names": NAMES, "steps": entries}
    (folder / "timeline.json.gz").write_bytes(gzip.compress(json.dumps(content).encode(), 1))


def large(folder: Path, ranks: int = 256, events: int = 1000) -> Path:
    """A run with a timeline of so many lanes, and so many events in each."""
    rng = random.Random(0)
    run(folder, f"fsdp{ranks}", seconds=1.0, traced=(3,))
    lanes = []
    for rank in range(ranks):
        cuts = sorted(rng.random() * 1e6 for _ in range(events - 1))
        pairs = zip([0.0, *cuts], [*cuts, 1e6], strict=True)
        made = [
            [round(a, 3), round(b - a, 3), 0, rng.randrange(9), rng.randrange(9), -1, n % 8, 0]
            for n, (a, b) in enumerate(pairs)
        ]
        lanes.append({"rank": rank, "events": made})
    write_timeline(folder / "traces" / "step_3", {3: lanes}, 1.0)
    return folder


def _line(step: int, seconds: float, peaks: list[int]) -> dict[str, Any]:
    slow = 3 if step <= 2 else 1 + 0.01 * (step % 3)
    return {
        "step": step,
        "loss": 10 - step / 10,
        "seconds": seconds * slow,
        "data_seconds": 0.002,
        "tokens_per_second": 131072 / seconds / slow,
        "tokens_per_second_per_device": 131072 / seconds / slow / len(peaks),
        "mfu": 0.15 / seconds / slow,
        "hfu": 0.17 / seconds / slow,
        "peak_memory_bytes": max(peaks),
        "peak_memory_bytes_by_rank": peaks,
    }


def _lane(rank: int, layout: Layout, seconds: float, rng: random.Random) -> dict[str, Any]:
    """One rank's step: data, 1F1B of its stage, gradients, optimizer."""
    stage = rank // (layout.world // layout.pipeline)
    micro_batches = 4
    unit = seconds * 1e6 / (11.6 + 2 * (layout.pipeline - 1))
    now, events = 0.0, []

    def add(kind: str, length: float, *, name: str = "", micro_batch: int = -1, size: int = 0, track: int = 0) -> None:
        nonlocal now
        where = stage if micro_batch >= 0 else -1
        entry = [
            round(now, 3),
            round(length, 3),
            track,
            KINDS.index(kind),
            NAMES.index(name or kind),
            where,
            micro_batch,
            size,
        ]
        events.append(entry)
        now += length if track == 0 else 0

    add("data", unit * 0.1)
    if stage:
        add("bubble", unit * stage)
    for number in range(micro_batches):
        add("communication", unit * 0.1, name="nccl:all_gather", micro_batch=number, size=2**26, track=1)
        add("forward", unit * rng.uniform(0.8, 0.85), micro_batch=number)
        add("communication", unit * 0.1, name="nccl:send", micro_batch=number, size=2**22)
    if layout.pipeline > 1:
        add("bubble", unit * 2 * (layout.pipeline - 1 - stage))
    for number in range(micro_batches):
        add("communication", unit * 1.2, name="nccl:reduce_scatter", micro_batch=number, size=2**27, track=1)
        add("backward", unit * rng.uniform(1.5, 1.6), micro_batch=number)
    add("communication", unit * 0.6, name="nccl:reduce_scatter", size=2**27)
    add("optimizer", unit * 0.5)
    add("idle", max(0.0, seconds * 1e6 - now))
    return {"rank": rank, "events": sorted(events)}


SHARES = {
    "forward": ("compute/gemm", "compute/attention"),
    "backward": ("compute/gemm", "compute/elementwise"),
    "bubble": ("bubble/warmup", "bubble/drain"),
    "communication": ("communication/fsdp", "communication/pp"),
    "idle": ("idle",),
    "data": ("data",),
    "optimizer": ("optimizer",),
}


def _shares(lane: dict[str, Any]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for _, duration, track, kind, *_ in lane["events"]:
        names = SHARES[KINDS[kind]]
        for name, part in zip(names, (0.7, 0.3) if len(names) == 2 else (1.0,), strict=True):
            shares[name] = shares.get(name, 0.0) + (0 if track else part * duration / 1e6)
    return shares


def _breakdown(layout: Layout, seconds: float, lanes: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    steps = [
        {"step": step, "seconds": seconds, "ranks": [_rank(lane) for lane in found]} for step, found in lanes.items()
    ]
    ranks = [rank for step in steps for rank in step["ranks"]]
    total = sum(rank["seconds"] for rank in ranks)
    names = list(dict.fromkeys(name for rank in ranks for name in rank["shares"]))
    mean = {name: sum(rank["shares"].get(name, 0.0) for rank in ranks) / total for name in names}
    bubble = mean.get("bubble/warmup", 0) + mean.get("bubble/drain", 0)
    piped = {"bubble": bubble, "schedule": bubble * 0.9, "by_rank": {str(rank): bubble for rank in range(layout.world)}}
    return {
        "version": 1,
        "traces": "traces",
        "layout": str(layout),
        "world": layout.world,
        "ranks": list(range(layout.world)),
        "device": "cuda",
        "device_name": "NVIDIA A100-SXM4-80GB",
        "steps": steps,
        "mean": mean,
        "worst": {"step": next(iter(lanes)), "rank": layout.world - 1, "seconds": seconds},
        "stages": [
            {"stage": stage, "rank": stage * layout.world // layout.pipeline, "forward_seconds": seconds * 0.2}
            | {"backward_seconds": seconds * 0.4, "weight_seconds": 0, "micro_batches": 4}
            for stage in range(layout.pipeline)
        ],
        "pipeline": piped if layout.pipeline > 1 else None,
        "collectives": [
            {"collective": "all_gather", "axis": "fsdp", "group_size": layout.shard, "count": 8, "bytes": 2**29}
            | {"seconds": 0.04, "exposed_seconds": 0.002, "bus_bytes_per_second": 1.9e11},
            {"collective": "reduce_scatter", "axis": "fsdp", "group_size": layout.shard, "count": 10, "bytes": 2**30}
            | {"seconds": 0.08, "exposed_seconds": 0.01, "bus_bytes_per_second": None},
        ],
        "kernels": [
            {
                "name": "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn",
                "class": "gemm",
                "count": 960,
                "seconds": 0.11,
            },
            {
                "name": "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
                "class": "attention",
            }
            | {"count": 160, "seconds": 0.03},
        ],
        "causes": [
            {"kind": "bubble", "rank": None, "seconds": seconds * bubble}
            | {"sentence": f"ranks wait {bubble:.0%} of the step for a neighbour; more micro-batches would cut it"},
            {"kind": "straggler", "rank": layout.world - 1, "seconds": 0.01}
            | {"sentence": f"rank {layout.world - 1} computes 1.1x as long as the median rank"},
        ],
        "untraced_seconds": seconds * 0.9,
        "predicted": {
            "seconds": seconds * 0.94,
            "shares": {n: v / (1 - mean["idle"]) * seconds * 0.94 for n, v in mean.items() if n != "idle"},
        },
        "memory": [_memory(rank, lanes) for rank in range(layout.world)],
        "notes": [],
    }


def _rank(lane: dict[str, Any]) -> dict[str, Any]:
    shares = _shares(lane)
    return {
        "rank": lane["rank"],
        "start": 0.0,
        "seconds": sum(shares.values()),
        "shares": shares,
        "hidden": {"communication/fsdp": 0.02},
        "overlap": 0.62,
        "collectives": {"reduce_scatter": 0.01},
        "waiting": {"communication/fsdp": 0.004},
        "flops_per_second": 1.6e14,
    }


def _memory(rank: int, lanes: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    top = (34 + rank % 4) * 2**30
    phases = [
        {"phase": name, "peak_bytes": int(top * part), "end_bytes": int(top * 0.5)} for name, part in PHASES.items()
    ]
    steps = [{"step": step, "phases": phases} for step in lanes]
    return {"version": 1, "rank": rank, "device": "cuda", "measure": "allocator", "steps": steps}
