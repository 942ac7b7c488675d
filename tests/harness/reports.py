"""Results of studies that were never run, for the tests and the benchmark of the report: a report.json as a dict."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable
from typing import Any

from torchlayout.config import Config
from torchlayout.layout import Layout

LABELS = (
    "fsdp8",
    "dp2-fsdp4",
    "fsdp8+mb2",
    "fsdp4-tp2",
    "fsdp4-tp2+sp",
    "fsdp4-tp2+sp+math",
    "pp2-fsdp4",
    "pp2-fsdp2-tp2+sp",
    "pp4-fsdp2+ckpt",
    "pp4-fsdp2+interleaved2+ckpt",
    "fsdp4-tp2+sp+eager",
    "fsdp4-cp2+ulysses",
)


def study(
    labels: Iterable[str] = LABELS, *, repeats: int = 3, steps: int = 40, mfu: bool = True, shares: bool = False
) -> dict[str, Any]:
    """A study whose layouts all ran; times, memory and losses are made up, plausible and always the same."""
    layouts = [measured(Layout.parse(label), repeats, steps, mfu, shares) for label in labels]
    if layouts:
        _judge(layouts, repeats)
    best = min(layouts, key=lambda layout: layout["step_seconds"]["median"])["label"] if layouts else None
    return {
        "version": 1,
        "study": facts(repeats, steps, mfu),
        "verdict": {
            "fair": True,
            "parity": True,
            "problems": [],
            "best": best,
            "sentence": _sentence(layouts, best),
        },
        "layouts": layouts,
        "figures": [],
    }


def facts(repeats: int = 3, steps: int = 40, mfu: bool = True) -> dict[str, Any]:
    """The study's own entry."""
    return {
        "name": "llama-13b-2k",
        "created": "2026-03-01T12:00:00+00:00",
        "model": {"name": "llama-13b", "num_hidden_layers": 40, "hidden_size": 5120, "parameters": 13_015_864_320},
        "nproc": 8,
        "nnodes": 1,
        "steps": steps,
        "warmup_steps": 4,
        "repeats": repeats,
        "global_batch": 64,
        "sequence": 2048,
        "precision": {"parameters": "bf16", "reduce": "fp32"},
        "hardware": {"device": "cuda", "device_name": "NVIDIA A100-SXM4-80GB", "backend": "nccl"},
        "software": {"torch": "2.13.0", "python": "3.11.2", "nccl": [2, 27, 3]},
        "mfu_note": "MFU against a100-sxm-80gb: 312 TFLOP/s in bf16"
        if mfu
        else 'no MFU: the peak of "cpu" is not known',
    }


def measured(layout: Layout, repeats: int, steps: int, mfu: bool, shares: bool) -> dict[str, Any]:
    """A layout that ran, with a time that follows from what it does."""
    rng = random.Random(str(layout))
    micro_batches = 64 // (layout.data_ranks * layout.micro_batch) or 1
    bubble = (layout.pipeline - 1) / (micro_batches * layout.virtual_stages + layout.pipeline - 1)
    recomputed = 4 / 3 if layout.recompute != "none" else 1.0
    slow = 1 + 0.09 * math.log2(layout.tensor) + 0.05 * math.log2(layout.context) + 0.02 * (layout.zero == 3)
    slow *= 1 + 0.12 * (layout.attention == "math") + 0.04 * (layout.norm == "eager") - 0.02 * (layout.micro_batch > 1)
    base = 9.2 * recomputed * slow * rng.uniform(0.98, 1.02)
    medians = [base / (1 - bubble) * rng.uniform(0.99, 1.01) for _ in range(repeats)]
    step = sorted(medians)[repeats // 2]
    tokens = 64 * 2048 / step
    model_share = 0.62 * 9.2 / step
    memory = (26 + 52 / layout.tensor / layout.pipeline + 3 * layout.micro_batch) / (1.6 if recomputed > 1 else 1)
    return blank(str(layout), "ok", layout) | {
        "bubble_fraction": bubble if layout.pipeline > 1 else None,
        "repeats": [
            {
                "directory": f"{layout}/repeat_{number}",
                "status": "ok",
                "log": f"{layout}/repeat_{number}/logs/torchrun.log",
                "step_seconds_median": seconds,
                "tokens_per_second_median": 64 * 2048 / seconds,
            }
            for number, seconds in enumerate(medians, 1)
        ],
        "step_seconds": {"median": step, "low": min(medians), "high": max(medians)},
        "tokens_per_second": {
            "median": tokens,
            "low": 64 * 2048 / max(medians),
            "high": 64 * 2048 / min(medians),
        },
        "tokens_per_second_per_device": tokens / 8,
        "mfu": model_share if mfu else None,
        "hfu": model_share * recomputed if mfu else None,
        "peak_memory_bytes": int(memory * 2**30),
        "peak_memory_rank": rng.randrange(8),
        "data_seconds_fraction": rng.uniform(0.001, 0.03),
        "losses": [10.4 * math.exp(-number / 25) + 2 + rng.uniform(-1, 1) * 2e-6 for number in range(steps)],
        "shares": _shares(bubble, slow, rng) if shares else None,
        "config_toml": f'[model]\npreset = "llama-13b"\n\n[layout]\nlabel = "{layout}"\n',
        "torchrun": f"torchrun --nproc-per-node 8 -m torchlayout.train config.toml --layout '{layout}'",
    }


def blank(label: str, status: str, layout: Layout | None = None, reason: str | None = None) -> dict[str, Any]:
    """A layout without figures."""
    return {
        "label": label,
        "axes": dataclasses.asdict(layout) if layout else {},
        "status": status,
        "reason": reason,
        "repeats": [],
        "losses": [],
        "why_slower": [],
        "config_toml": "",
        "torchrun": "",
    }


def losers() -> list[dict[str, Any]]:
    """A layout for each way not to have figures."""
    return [
        blank("fsdp8+mb8", "oom", Layout.parse("fsdp8+mb8"), "rank 3 ran out of memory: 79.1 of 80 GiB were in use")
        | {"repeats": [{"directory": "fsdp8+mb8/repeat_1", "status": "oom", "log": "fsdp8+mb8/repeat_1/torchrun.log"}]},
        blank("pp2-fsdp4+gpipe", "timeout", Layout.parse("pp2-fsdp4+gpipe"), "still running after 600 seconds"),
        blank("fsdp2-tp4", "failed", Layout.parse("fsdp2-tp4"), "rank 0 exited with code 1: RuntimeError: NCCL error"),
        blank("fsdp2-tp3", "skipped", None, "2 x 3 = 6 ranks is not 8; tensor = 3 does not divide 40 heads"),
        blank("dp8", "pending", Layout.parse("dp8"), None),
    ]


def large(number: int = 1000, steps: int = 50) -> dict[str, Any]:
    """A sweep of legal layouts of a 13B model on 64 ranks, one in ten of them without figures."""
    config = Config.from_dict({"model": {"preset": "llama-13b"}, "data": {"path": "."}, "batch": {"global_size": 2048}})
    found = _sweep(config, number)
    report = study((), steps=steps)
    report["study"] |= {"nnodes": 8, "global_batch": 2048}
    for place, layout in enumerate(found):
        if place % 10 == 7:
            reason = f"rank {place % 64} ran out of memory: {70 + place % 10} of 80 GiB were in use"
            report["layouts"].append(blank(str(layout), "oom", layout, reason))
        else:
            report["layouts"].append(measured(layout, 3, steps, True, False))
    ran = [layout for layout in report["layouts"] if layout["status"] == "ok"]
    _judge(ran, 3)
    best = min(ran, key=lambda layout: layout["step_seconds"]["median"])["label"]
    report["verdict"] |= {"best": best, "sentence": _sentence(ran, best)}
    return report


def _sweep(config: Config, number: int) -> list[Layout]:
    """Legal layouts of 64 ranks, from all parts of their order, so that every axis is among them."""
    everything = Layout.enumerate(
        64,
        config.model,
        2048,
        2048,
        config.precision,
        micro_batch=(1, 2, 4),
        context=1,
        schedule=("1f1b", "interleaved"),
        recompute=("none", "ckpt"),
    )
    found = [layout for layout in everything if layout.virtual_stages <= 4 and layout.zero != 1]
    return sorted(random.Random(0).sample(found, number), key=str)


def _judge(layouts: list[dict[str, Any]], repeats: int) -> None:
    baseline = layouts[0]
    for layout in layouts:
        ratio = baseline["step_seconds"]["median"] / layout["step_seconds"]["median"]
        low, high = (ratio * 0.985, ratio * 1.015) if repeats >= 3 else (None, None)
        shown = None if low is None or high is None else not low <= 1 <= high
        layout["ratio"] = {"value": ratio, "low": low, "high": high, "difference_shown": shown}
        pairs = list(zip(layout["losses"], baseline["losses"], strict=True))
        differences = [abs(ours - theirs) / theirs for ours, theirs in pairs]
        layout["parity"] = {
            "loss_difference": max(differences),
            "loss_step": differences.index(max(differences)) + 1,
            "norm_difference": 3.1e-5,
            "norm_step": 17,
            "tolerance": 1e-3,
            "norm_tolerance": 1e-2,
            "within": True,
        }
        layout["fair"] = dict.fromkeys(("data", "weights", "tokens", "optimizer", "settings", "software"), True)


def _shares(bubble: float, slow: float, rng: random.Random) -> dict[str, float]:
    shares = {"bubble": bubble, "communication": max(0.0, slow - 1) / slow * (1 - bubble), "data": rng.uniform(0, 0.02)}
    shares |= {"idle": rng.uniform(0.005, 0.02), "optimizer": 0.02}
    return {"compute": 1 - sum(shares.values()), **shares}


def _sentence(layouts: list[dict[str, Any]], best: str | None) -> str:
    if best is None:
        return "No layout has finished a run yet."
    ratio = next(layout["ratio"] for layout in layouts if layout["label"] == best)
    interval = "" if ratio["low"] is None else f" (95% interval {ratio['low']:.2f} to {ratio['high']:.2f})"
    return f"{best} is fastest here: {ratio['value']:.2f}x the speed of {layouts[0]['label']}{interval}."
