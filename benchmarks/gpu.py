"""One GPU, one script, one table: is a training step right, how fast is it, and what does each kernel choice cost?

    python benchmarks/gpu.py                       # llama-1b, under five minutes on an H100
    python benchmarks/gpu.py --tiny                # the same on a CPU, in seconds, to test the script

Needs Python 3.11, torch 2.11 and numpy, or later, nothing else: no data, no torchdata, no pydantic. FLOPs are counted
in the convention of arXiv 2311.05610 (6 N + 12 L h s a token); the peak comes from the hardware files.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tomllib
import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # so that it runs where nothing is installed

# ruff: noqa: E402
from torchlayout.model.count import flops_per_token, parameters
from torchlayout.model.initialize import initialize
from torchlayout.model.llama import Llama
from torchlayout.parallel.shard import apply_fully_shard
from torchlayout.train.environment import MemoryMeter, device_name, pick_device, process_group

TINY = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class Choice:
    """One row of the table."""

    name: str
    attention: str = "sdpa"
    norm: str = "fused"
    loss: str = "chunked"
    compile: bool = False


CHOICES = [
    Choice("baseline (sdpa, fused norm, chunked loss)"),
    Choice("attention math", attention="math"),
    Choice("attention flash", attention="flash"),
    Choice("attention flex, compiled", attention="flex", compile=True),
    Choice("norm eager", norm="eager"),
    Choice("loss plain", loss="plain"),
    Choice("compiled blocks", compile=True),
    Choice("compiled blocks, norm eager", norm="eager", compile=True),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="llama-1b")
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="measured steps of each row, after three to warm up")
    parser.add_argument("--tiny", action="store_true", help="a model of two narrow layers, two steps")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    model = described(TINY if arguments.tiny else preset(arguments.preset))
    if arguments.tiny:
        arguments.sequence, arguments.micro_batch, arguments.steps = 64, 2, 2

    device = pick_device()
    peak = peak_flops(device_name(device))
    print(f"{device_name(device)}, torch {torch.__version__}, bf16 peak {peak and f'{peak:.3g} FLOP/s'}")
    print(f"{parameters(model):,} parameters, sequence {arguments.sequence}, micro-batch {arguments.micro_batch}")
    with process_group(device, 300):
        correct = correctness(model, arguments.sequence, device)
        rows = [measure(model, choice, arguments, device, peak) for choice in CHOICES]
    print_table(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": device_name(device), "correctness": correct, "rows": rows}))
    return 0 if all(row["within"] for row in correct) else 1


def preset(name: str) -> dict[str, Any]:
    """The fields of a shipped preset."""
    file = HERE.parent / "torchlayout" / "config" / "presets" / f"{name}.toml"
    return tomllib.loads(file.read_text())


def described(fields: dict[str, Any]) -> Any:
    """What the model reads of its configuration, without the validation that needs pydantic."""
    filled = {
        "num_key_value_heads": fields["num_attention_heads"],
        "head_dim": fields["hidden_size"] // fields["num_attention_heads"],
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    } | fields
    if filled["rope_scaling"] is not None:
        filled["rope_scaling"] = SimpleNamespace(**filled["rope_scaling"])
    return SimpleNamespace(**filled)


def peak_flops(name: str) -> float | None:
    """The device's bf16 peak, from the hardware file that knows its name."""
    for file in sorted((HERE.parent / "torchlayout" / "hardware" / "devices").glob("*.toml")):
        device = tomllib.loads(file.read_text())
        if any(re.fullmatch(pattern, name.strip(), re.IGNORECASE) for pattern in device["matches"]):
            return float(device["peak_flops"]["bf16"])
    return None


def correctness(model: Any, sequence: int, device: torch.device) -> list[dict[str, Any]]:
    """Loss and gradient of one step of a two-layer model in fp32 and bf16, against fp64 with the reference kernels."""
    shallow = SimpleNamespace(**vars(model) | {"num_hidden_layers": 2})
    tokens = random_tokens(shallow, 1, min(sequence, 1024), device)
    reference = Choice("fp64", attention="math", norm="eager", loss="plain")
    exact_loss, exact = loss_and_gradient(shallow, reference, "fp64", tokens, device)
    rows = []
    for precision, limit in (("fp32", 1e-4), ("bf16", 3e-2)):
        loss, gradient = loss_and_gradient(shallow, CHOICES[0], precision, tokens, device)
        loss_error = abs(loss - exact_loss) / exact_loss
        gradient_error = float((gradient - exact).norm() / exact.norm())
        within = loss_error < limit and gradient_error < limit
        print(
            f"{'ok   ' if within else 'WRONG'} one step in {precision} against fp64: "
            f"loss {loss_error:.1e}, gradient {gradient_error:.1e} (limit {limit:.0e})"
        )
        rows.append({"precision": precision, "loss": loss_error, "gradient": gradient_error, "within": within})
    return rows


def loss_and_gradient(
    model: Any, choice: Choice, precision: str, tokens: Tensor, device: torch.device
) -> tuple[float, Tensor]:
    """The mean loss, and the gradient of all parameters in one fp64 vector."""
    llama = built(model, choice, precision, device)
    loss = llama(tokens[:, :-1], tokens[:, 1:]).sum() / tokens[:, 1:].numel()
    loss.backward()
    gradient = torch.cat([p.grad.to_local().flatten().double() for p in llama.parameters()])
    return loss.item(), gradient


def built(model: Any, choice: Choice, precision: str, device: torch.device) -> Llama:
    """A model on one rank of FSDP2, which brings mixed precision."""
    mesh = torch.distributed.init_device_mesh(device.type, (1,), mesh_dim_names=("shard",))
    with torch.device("meta"):
        llama = Llama(model, attention=choice.attention, norm=choice.norm, loss=choice.loss)
    wide = "fp64" if precision == "fp64" else "fp32"
    llama.to(torch.float64 if wide == "fp64" else torch.float32)
    if choice.compile:
        for block in llama.layers.values():
            block.compile()
    apply_fully_shard(llama, mesh, parameters=precision, reduce=wide, zero=2)
    llama.to_empty(device=device)
    llama.tie()
    initialize(llama, model, seed=0)
    return llama


def measure(
    model: Any, choice: Choice, arguments: argparse.Namespace, device: torch.device, peak: float | None
) -> dict[str, Any]:
    """Median step time, MFU and peak memory; out of memory and a missing kernel are results."""
    row: dict[str, Any] = {"name": choice.name, "status": "ok"}
    try:
        row |= timed(model, choice, arguments, device)
    except torch.OutOfMemoryError:
        row["status"] = "out of memory"
    except (ImportError, NotImplementedError, RuntimeError) as error:
        row["status"] = str(error).strip().splitlines()[0][:60]
    if row["status"] == "ok":
        flops = flops_per_token(model, arguments.sequence, "paper")
        row["mfu"] = row["tokens_per_second"] * flops / peak if peak else None
    gc.collect()
    torch._dynamo.reset()  # no public call forgets the graphs of the last row
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return row


def timed(model: Any, choice: Choice, arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    llama = built(model, choice, "bf16", device)
    optimizer = torch.optim.AdamW(llama.parameters(), lr=1e-4, fused=device.type == "cuda")
    tokens = random_tokens(model, arguments.micro_batch, arguments.sequence, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for step in range(arguments.steps + 3):
        started = time.perf_counter()
        loss = llama(tokens[:, :-1], tokens[:, 1:]).sum() / tokens[:, 1:].numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        last_loss = loss.item()  # waits for the device
        if device.type == "cuda":
            torch.cuda.synchronize()
        if step >= 3:
            seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)
    return {
        "step_milliseconds": median * 1e3,
        "tokens_per_second": arguments.micro_batch * arguments.sequence / median,
        "peak_gib": MemoryMeter(device).peak_bytes() / 2**30,
        "loss": last_loss,
    }


def random_tokens(model: Any, batch: int, sequence: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, model.vocab_size, (batch, sequence + 1), generator=generator).to(device)


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'':<44}{'step ms':>9}{'tokens/s':>11}{'MFU':>8}{'peak GiB':>10}{'loss':>8}")
    for row in rows:
        if row["status"] != "ok":
            print(f"{row['name']:<44}{row['status']}")
            continue
        mfu = "" if row["mfu"] is None else f"{row['mfu']:.1%}"
        print(
            f"{row['name']:<44}{row['step_milliseconds']:>9.1f}{row['tokens_per_second']:>11,.0f}"
            f"{mfu:>8}{row['peak_gib']:>10.2f}{row['loss']:>8.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
