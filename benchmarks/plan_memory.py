"""Compares what the planner says of each rank's memory with real steps on the CPU; exit 1 where it is more than 5% off.

python benchmarks/plan_memory.py [--accounts FILE] [--precision bf16] [--loss plain] [LABEL]...

Tensors are followed in real steps (benchmarks/memory_tracked.py), which takes ten minutes on two cores without labels;
`--accounts` reads what memory_tracked.py wrote with `--json` instead. Ranks that hold the same are printed once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from memory_tracked import Case, measure

from harness.accounts import counted, predicted

ALLOWED = 0.05
MEGA = 1e6
COMPARED = (
    Case("fsdp2"),
    Case("fsdp2+zero2"),
    Case("fsdp2+zero1"),
    Case("dp2"),
    Case("dp2-fsdp2"),
    Case("fsdp2+ckpt"),
    Case("fsdp2+selective+zero1"),
    Case("fsdp2+math+ckptattn"),
    Case("fsdp2+math+selective"),
    Case("tp2+sp"),
    Case("tp2+sp+ckpt"),
    Case("tp2+zero1"),
    Case("cp2"),
    Case("cp2+math"),
    Case("cp2+ulysses+math"),
    Case("pp2"),
    Case("pp2+gpipe"),
    Case("pp2+interleaved2"),
    Case("pp2+zbv"),
    Case("pp2+dualpipev"),
    Case("pp2+zerobubble2+ckpt"),
    Case("pp2-tp2"),
    Case("pp2-fsdp2+gpipe+zero3"),
    Case("fsdp2", loss="plain"),
    Case("fsdp2", model=(("tie_word_embeddings", True),)),
    Case("fsdp2", "bf16"),
    Case("fsdp2", "bf16", "plain"),
    Case("fsdp2+mb2", "bf16"),
    Case("fsdp2+zero1", "bf16"),
    Case("fsdp2+eager", "bf16"),
    Case("fsdp2+selective", "bf16"),
    Case("fsdp2+math+ckpt", "bf16"),
    Case("tp2+sp", "bf16"),
    Case("pp2", "bf16"),
    Case("pp2-fsdp2", "bf16"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", nargs="*", metavar="LABEL", help="layouts to train instead of COMPARED")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="with labels: of compute")
    parser.add_argument("--loss", choices=("chunked", "plain"), default="chunked", help="with labels")
    parser.add_argument("--accounts", type=Path, metavar="FILE", help="accounts of ranks, instead of training")
    arguments = parser.parse_args()
    if arguments.accounts:
        accounts = json.loads(arguments.accounts.read_text())
    else:
        cases = [Case(label, arguments.precision, arguments.loss) for label in arguments.labels] or list(COMPARED)
        with tempfile.TemporaryDirectory() as folder:
            accounts = measure(cases, Path(folder))
    errors = [show(account) for account in different(accounts)]
    print(f"{len(errors)} ranks; the largest error is {max(map(abs, errors)):.2%}, {ALLOWED:.0%} are allowed")
    return 1 if any(abs(error) > ALLOWED for error in errors) else 0


def different(accounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One of those accounts of a case that say the same."""
    told = ("label", "precision", "loss", "stages", "model", "peak_bytes")
    return list({json.dumps([account[name] for name in told]): account for account in accounts}.values())


def show(account: dict[str, Any]) -> float:
    """Print a rank's line in MB (1e6 bytes); return the planner's error."""
    memory = predicted(account)
    error = counted(memory) / account["peak_bytes"] - 1
    name = f"{account['label']} {account['precision']} {account['loss']}{' tied' * account['tied']}"
    stages = ",".join(map(str, account["stages"]))
    figures = f"{counted(memory) / MEGA:9.2f} {account['peak_bytes'] / MEGA:9.2f} {error:+8.2%}"
    print(f"{name:<40} stage {stages:<5} {figures}  {memory.phase:<24} {account['peak']['where']}")
    return error


if __name__ == "__main__":
    sys.exit(main())
