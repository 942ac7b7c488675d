"""Prints how far every layout of the parity test is from a plain single process, in fp64.

python benchmarks/parity.py [--precision fp32] [--only LABEL]...
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.cases import CASES, Case, configuration
from harness.compare import TOLERANCES, distance
from harness.launch import train_layouts
from harness.reference import train_plainly
from torchlayout.data.prepare import prepare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", choices=TOLERANCES, default="fp64")
    parser.add_argument("--only", action="append", metavar="LABEL")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [case for case in CASES if not arguments.only or case.label in arguments.only]
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(cases, arguments.precision, Path(folder))
    step, parameters = TOLERANCES[arguments.precision]
    print(
        f"{len(cases)} layouts, {wrong} outside {step:.0e} (losses, gradient norms) and {parameters:.0e} (parameters)"
    )
    return 1 if wrong else 0


def run(cases: list[Case], precision: str, folder: Path) -> int:
    corpus = folder / "tokens"
    prepare([__file__], corpus)
    by_ranks: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_ranks[case.ranks].append(case)
    wrong = 0
    for ranks, group in sorted(by_ranks.items()):
        configurations = [configuration(case.variant, str(corpus), precision) for case in group]
        jobs = [{"label": case.label, "config": raw} for case, raw in zip(group, configurations, strict=True)]
        for case, raw, outcome in zip(group, configurations, train_layouts(ranks, jobs, folder), strict=True):
            apart = distance(outcome, train_plainly(raw))
            wrong += not apart.within(precision)
            verdict = "ok   " if apart.within(precision) else "WRONG"
            print(f"{verdict} {ranks} ranks  {case!s:<55} {apart}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
