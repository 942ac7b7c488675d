"""Prints what memory a step takes on the CPU: activations by recomputation and context degree, shards by zero level.

python benchmarks/memory.py [--markdown docs/memory.md --date YYYY-MM-DD]

Every figure is followed storage by storage while a small model runs, and has its formula's value beside it
(tests/harness/formulas.py). Two minutes at most on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from parallel.ranks import Call, on_ranks
from torchlayout.config import ModelConfig
from torchlayout.model.count import parameters

MODEL = {
    "vocab_size": 509,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
SEQUENCE, LONG = 512, 1024
MODES = ("none", "ckptattn", "selective", "ckpt2", "ckpt")
CONTEXTS = ("fsdp1", "cp2", "cp2+ulysses", "cp4", "cp4+ulysses")
ZEROS = ("dp4", "fsdp4+zero1", "fsdp4+zero2", "fsdp4")
REDUCTIONS = ("fp32", "bf16")
MIB = 2**20


@dataclass(frozen=True)
class Table:
    """A heading, what it shows, and rows of text, the first of them the names of the columns."""

    heading: str
    says: str
    rows: list[tuple[str, ...]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here as well")
    parser.add_argument("--date", help="of the measurement, for the file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder))
    tables = [recomputation(measured), context(measured), zero(measured)]
    for table in tables:
        print(f"\n{table.heading}\n{table.says}\n")
        widths = [max(len(row[column]) for row in table.rows) for column in range(len(table.rows[0]))]
        for row in table.rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if arguments.markdown:
        arguments.markdown.write_text(markdown(tables, arguments.date))
    return 0


def measure(folder: Path) -> dict[str, Any]:
    """What each call's ranks found, by its name; one launch for each number of ranks."""
    calls: dict[int, dict[str, Call]] = {1: {}, 2: {}, 4: {}}
    for kernel in ("", "+math"):
        for mode in MODES if not kernel else ("none", "ckptattn"):
            label = "fsdp1" + kernel + ("" if mode == "none" else f"+{mode}")
            calls[1][label] = Call("memory_ranks:activations", {"label": label, "raw": raw(SEQUENCE)})
    for base in CONTEXTS:
        ranks = int(base[2]) if base.startswith("cp") else 1
        for label in (base, f"{base}+ckpt"):
            calls[ranks][f"{label}, long"] = Call("memory_ranks:activations", {"label": label, "raw": raw(LONG)})
    for label in ZEROS:
        for reduce in REDUCTIONS:
            calls[4][f"{label}, {reduce}"] = Call("memory_ranks:held", {"label": label, "raw": raw(16, reduce)})
    together: dict[str, Any] = {}
    for ranks, group in calls.items():
        together |= on_ranks(ranks, group, folder)
    return together


def raw(sequence: int, reduce: str = "fp32") -> dict[str, Any]:
    """bf16, the chunked loss; three micro-batches on four data ranks."""
    return {
        "model": MODEL,
        "data": {"path": "none", "sequence_length": sequence},
        "batch": {"global_size": 12},
        "precision": {"parameters": "bf16", "reduce": reduce},
    }


def recomputation(measured: dict[str, Any]) -> Table:
    rows = [("attention", "recomputation", "MiB kept", "formula", "of none", "extra FLOPs", "formula")]
    for kernel in ("sdpa", "math"):
        for mode in MODES if kernel == "sdpa" else ("none", "ckptattn"):
            base = "fsdp1" if kernel == "sdpa" else "fsdp1+math"
            found = measured[base if mode == "none" else f"{base}+{mode}"][0]
            rows.append(
                (
                    kernel,
                    mode,
                    *mebibytes(found["bytes"], found["bytes by formula"]),
                    f"{found['bytes'] / measured[base][0]['bytes']:.1%}",
                    # What the score matrix computes above the diagonal is no recomputation.
                    *(
                        (percent(found["recomputed"], found), percent(found["recomputed by formula"], found))
                        if kernel == "sdpa"
                        else ("", "")
                    ),
                )
            )
    says = (
        f"Activations that the 8 blocks keep after the forward pass of one sequence of {SEQUENCE} tokens, and FLOPs "
        "that backward does again, as a part of the FLOPs of a step (the chunked loss' own product included)."
    )
    return Table("Recomputation", says, rows)


def context(measured: dict[str, Any]) -> Table:
    rows = [("layout", "MiB kept by a rank", "formula", "of one rank", "with ckpt", "formula", "of one rank")]
    for label in CONTEXTS:
        cells: list[str] = []
        for suffix in ("", "+ckpt"):
            alone = measured[f"fsdp1{suffix}, long"][0]["bytes"]
            worst = max(measured[f"{label}{suffix}, long"], key=lambda found: found["bytes"])
            cells += [*mebibytes(worst["bytes"], worst["bytes by formula"]), f"{worst['bytes'] / alone:.1%}"]
        rows.append((label, *cells))
    says = (
        f"Activations that the 8 blocks keep of one sequence of {LONG} tokens. Across context ranks a block keeps "
        "attention's result twice, as the kernel's and rearranged for the output projection."
    )
    return Table("Context parallelism", says, rows)


def zero(measured: dict[str, Any]) -> Table:
    kinds = ("parameters", "gradients", "states", "gathered", "unsharded_gradients")
    names = [name for kind in kinds for name in (kind.replace("_", " "), "formula")]
    rows = [("layout", "reduced in", *names)]
    for label in ZEROS:
        for reduce in REDUCTIONS:
            ranks = measured[f"{label}, {reduce}"]
            cells: list[str] = []
            for kind in kinds:
                worst = max(rank["measured"][kind] for rank in ranks)
                cells += mebibytes(worst, ranks[0]["formula"][kind])
            rows.append((label, reduce, *cells))
    count = parameters(ModelConfig(**MODEL))
    says = (
        f"MiB of the worst of 4 ranks, {count:,} parameters in bf16 with fp32 masters, 3 micro-batches: shards of "
        "parameters, gradients and AdamW's states, and the most that was gathered, or a gradient not yet reduced. "
        "A plain `dp4` is zero3 over one rank: it holds all, and still gathers the bf16 copy block by block."
    )
    return Table("Zero levels", says, rows)


def mebibytes(measured: float, formula: float) -> tuple[str, str]:
    return f"{measured / MIB:.3f}", f"{formula / MIB:.3f}"


def percent(flops: float, found: dict[str, float]) -> str:
    return f"{flops / found['needed flops']:.2%}"


def markdown(tables: list[Table], date: str | None) -> str:
    model = ", ".join(f"{name} {value}" for name, value in MODEL.items())
    parts = [
        "# Memory of a step, measured",
        f"`python benchmarks/memory.py --markdown docs/memory.md`, {date}, CPU, gloo, torch "
        f"{torch.__version__.split('+')[0]}, no GPU. {model}; bf16.",
        "Measured by following every storage that operations return; beside each figure what "
        "`tests/harness/formulas.py` says. `tests/parallel/test_recompute.py` and `test_zero.py` hold both together, "
        "activations to the byte.",
        "Not in the tables: the flat buffers of a collective in flight (one block's parameters or gradients), and what "
        "embedding and head keep. The CPU's norm keeps its input and its normed input, both in fp32, where a GPU's "
        "fused norm keeps its input as it is given: 12 bytes a token and unit of hidden size less in each block.",
    ]
    for table in tables:
        header, *rows = table.rows
        parts += [f"## {table.heading}", table.says]
        lines = [header, tuple("---" for _ in header), *rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
