"""Trains random legal layouts of random small models on 1 to 8 ranks, and compares each with a plain single process.

python benchmarks/random_layouts.py [--draws 100] [--seed 0] [--only NUMBER]... [--compiled 0.02]

Two steps in fp64 each. Exits 1 where a layout differs, fails or hangs. A launch of several layouts that fails is taken
apart, so that one bad layout hides no other.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.compare import distance
from harness.draws import Draw, draw
from harness.launch import train_layouts
from harness.reference import train_plainly
from torchlayout.data.prepare import prepare

LAYOUTS_IN_A_LAUNCH = 6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, action="append", metavar="NUMBER", help="this draw of the seed alone")
    parser.add_argument("--ranks", type=int, help="all draws on this many ranks")
    parser.add_argument("--compiled", type=float, default=0.02, help="how often a layout is compiled where it may be")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started, verdicts = time.perf_counter(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "tokens"
        prepare([__file__], corpus)
        numbers = arguments.only or range(arguments.draws)
        drawn = [draw(n, arguments.seed, str(corpus), arguments.ranks, arguments.compiled) for n in numbers]
        for case, verdict, detail in run(drawn, Path(folder)):
            verdicts[verdict] += 1
            print(f"{verdict:<5} {case.layout.world} ranks  {case}  {detail}", flush=True)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    print(f"{len(drawn)} layouts of seed {arguments.seed} in {time.perf_counter() - started:.0f} s: {counts}")
    return 0 if set(verdicts) <= {"ok"} else 1


def run(drawn: list[Draw], folder: Path) -> Iterator[tuple[Draw, str, str]]:
    """Each draw with `ok`, `WRONG`, `FAIL` or `HANG`, and how far it is from the reference or what was said."""
    by_ranks: dict[int, list[Draw]] = defaultdict(list)
    for case in drawn:
        by_ranks[case.layout.world].append(case)
    for ranks, group in sorted(by_ranks.items()):
        for start in range(0, len(group), LAYOUTS_IN_A_LAUNCH):
            cases = group[start : start + LAYOUTS_IN_A_LAUNCH]
            try:
                outcomes = train_layouts(ranks, [case.job for case in cases], folder)
            except (AssertionError, subprocess.TimeoutExpired):
                yield from (alone(case, folder) for case in cases)
            else:
                yield from (judged(*pair) for pair in zip(cases, outcomes, strict=True))


def alone(case: Draw, folder: Path) -> tuple[Draw, str, str]:
    try:
        (outcome,) = train_layouts(case.layout.world, [case.job], folder)
    except subprocess.TimeoutExpired as error:
        return case, "HANG", f"nothing after {error.timeout:.0f} s"
    except AssertionError as error:
        said = [line.strip() for line in str(error).splitlines() if "Error" in line]
        timed_out = any("imed out" in line for line in said)
        return case, "HANG" if timed_out else "FAIL", said[0] if said else str(error)[-300:]
    return judged(case, outcome)


def judged(case: Draw, outcome: dict[str, Any]) -> tuple[Draw, str, str]:
    apart = distance(outcome, train_plainly(case.raw | {"kernels": case.raw["kernels"] | {"attention": "math"}}))
    return case, "ok" if apart.within("fp64") else "WRONG", str(apart)


if __name__ == "__main__":
    sys.exit(main())
