"""Prints where the memory of each layout's worst rank goes at its peak, in real training steps on the CPU.

python benchmarks/memory_tracked.py [--json FILE] [--precision bf16] [--loss plain] [LABEL]...

Every storage is followed while a small Llama trains (tests/harness/tracked.py); the third step is accounted for, when
optimizer states exist. What the accounts have to satisfy is checked: parameters and AdamW's states are known to the
byte. Without labels CASES, about 20 seconds each on two cores, and a minute where four ranks share them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.launch import torchrun
from torchlayout.data.prepare import prepare
from torchlayout.layout import Layout

TRACKED = Path(__file__).parent.parent / "tests" / "harness" / "tracked.py"
MODEL = {
    "vocab_size": 2000,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
# No two sizes are the same, so that a figure tells which tensor it is.
SEQUENCE, GLOBAL_BATCH = 320, 8
MEGA = 1e6


@dataclass(frozen=True)
class Case:
    """A layout, and what of the configuration its label does not say."""

    label: str
    precision: str = "fp32"
    loss: str = "chunked"
    model: tuple[tuple[str, Any], ...] = ()

    @property
    def ranks(self) -> int:
        return Layout.parse(self.label).world

    def job(self, corpus: Path) -> dict[str, Any]:
        raw = {
            "model": MODEL | dict(self.model),
            "data": {"path": str(corpus), "sequence_length": SEQUENCE, "workers": 0},
            "batch": {"global_size": GLOBAL_BATCH},
            "precision": {"parameters": self.precision},
            "kernels": {"loss": self.loss},
            # Below the norms of a fresh model, so that every step is clipped.
            "optimizer": {"clip_norm": 0.5},
        }
        return {"label": self.label, "config": raw}


CASES = [
    Case("fsdp1"),
    Case("fsdp2"),
    Case("fsdp2+zero2"),
    Case("fsdp2+zero1"),
    Case("dp2"),
    Case("dp2-fsdp2"),
    Case("fsdp4"),
    Case("fsdp2+mb2"),
    Case("fsdp2+mb4"),
    Case("fsdp2+ckpt"),
    Case("fsdp2+ckpt2"),
    Case("fsdp2+ckptattn"),
    Case("fsdp2+selective"),
    Case("dp4+selective"),
    Case("fsdp2+math"),
    Case("fsdp2+math+ckptattn"),
    Case("fsdp2+eager"),
    Case("tp2"),
    Case("tp2+sp"),
    Case("tp2+sp+ckpt"),
    Case("fsdp2-tp2+sp"),
    Case("pp2"),
    Case("pp2+gpipe"),
    Case("pp2+interleaved2"),
    Case("pp2+looped2"),
    Case("pp2+zerobubble2"),
    Case("pp2+zbv"),
    Case("pp2+ckpt"),
    Case("pp2-fsdp2"),
    Case("pp2-fsdp2+gpipe+zero3"),
    Case("pp2-tp2+sp"),
    Case("cp2"),
    Case("cp2+ulysses"),
    Case("cp2+math"),
    Case("fsdp2-cp2"),
    Case("fsdp2", loss="plain"),
    Case("pp2", loss="plain"),
    Case("fsdp2", "bf16"),
    Case("fsdp2+zero1", "bf16"),
    Case("fsdp2+ckpt", "bf16"),
    Case("fsdp2+selective", "bf16"),
    Case("fsdp2+math", "bf16"),
    Case("fsdp2+eager", "bf16"),
    Case("fsdp2", "bf16", "plain"),
    Case("tp2+sp", "bf16"),
    Case("pp2", "bf16"),
    Case("pp2-fsdp2", "bf16"),
    Case("cp2", "bf16"),
    Case("dp2", "bf16"),
    Case("fsdp2", model=(("tie_word_embeddings", True),)),
    Case("pp2", model=(("tie_word_embeddings", True),)),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", nargs="*", metavar="LABEL", help="layouts to train instead of CASES")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="with labels: of compute")
    parser.add_argument("--loss", choices=("chunked", "plain"), default="chunked", help="with labels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accounts of every rank here")
    arguments = parser.parse_args()
    cases = [Case(label, arguments.precision, arguments.loss) for label in arguments.labels] or CASES
    with tempfile.TemporaryDirectory() as folder:
        accounts = measure(cases, Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(accounts, indent=1))
    show(accounts)
    wrong = [sentence for account in accounts for sentence in violations(account)]
    print("\n".join(wrong) or f"{len(accounts)} ranks: parameters and states are what arithmetic says")
    return 1 if wrong else 0


def measure(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """The accounts of every rank of each case; one launch for each number of ranks."""
    corpus = folder / "tokens"
    prepare([str(path) for path in sorted(Path(__file__).parent.glob("*.py"))], corpus)
    by_ranks: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_ranks[case.ranks].append(case)
    found: dict[Case, list[dict[str, Any]]] = {}
    for ranks, group in sorted(by_ranks.items()):
        jobs, results = folder / f"jobs-{ranks}.json", folder / f"results-{ranks}.json"
        jobs.write_text(json.dumps([case.job(corpus) for case in group]))
        done = torchrun(ranks, str(TRACKED), str(jobs), str(results), timeout=120 + 120 * len(group))
        if done.returncode:
            raise SystemExit(done.stdout[-4000:] + done.stderr[-8000:])
        found |= dict(zip(group, json.loads(results.read_text()), strict=True))
    return [account for case in cases for account in found[case]]


def violations(account: dict[str, Any]) -> list[str]:
    """What cannot be: fp32 parameters, two states of each and a 4-byte step count for each tensor, nothing else.

    Of a model that divides evenly; FSDP2 pads the rows of what does not.
    """
    layout, elements = Layout.parse(account["label"]), account["parameters_of_rank"]
    if layout.tensor == layout.pipeline == 1:
        elements = account["parameters_of_model"] // (layout.shard * layout.context)
    expected = {"parameters": 4 * elements, "states": 8 * elements + 4 * account["tensors_of_rank"]}
    static = account["static"]["categories"]
    wrong = {name: static.get(name, 0) for name, size in expected.items() if static.get(name, 0) != size}
    if layout.pipeline == 1:  # a pipeline keeps buffers, losses and what crossed the turn of a V
        wrong |= {name: size for name, size in static.items() if name not in expected}
    who = f"{account['label']} rank {account['rank']}"
    return [
        f"{who}: {name} are {size:,} bytes between steps, not {expected.get(name, 0):,}" for name, size in wrong.items()
    ]


def show(accounts: list[dict[str, Any]]) -> None:
    """One line for the worst rank of each case: MB (1e6 bytes) at its peak, by category, and where that was."""
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    for account in accounts:
        key = tuple(json.dumps(account[name]) for name in ("label", "precision", "loss", "model"))
        if key not in cases or account["peak_bytes"] > cases[key]["peak_bytes"]:
            cases[key] = account
    for account in cases.values():
        parts = "  ".join(
            f"{name} {size / MEGA:.2f}" for name, size in account["peak"]["categories"].items() if size >= MEGA / 100
        )
        name = f"{account['label']} {account['precision']} {account['loss']}{' tied' * account['tied']}"
        print(f"{name:<38} rank {account['rank']} {account['peak_bytes'] / MEGA:8.2f} MB: {parts}")
        print(f"{'':<53}{account['peak']['where']}; between steps {account['static']['bytes'] / MEGA:.2f} MB")


if __name__ == "__main__":
    sys.exit(main())
