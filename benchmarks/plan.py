"""Prints how fast the planner is; exit 1 where it prices fewer than 3,000 layouts or takes over 20 s, in CPU seconds.

python benchmarks/plan.py [--examples docs/plan.md]

`--examples` runs the commands of a guide and writes what they print below them.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchlayout.config import Config
from torchlayout.plan.search.answer import answer
from torchlayout.plan.search.ask import ask
from torchlayout.plan.search.question import Question
from torchlayout.plan.search.space import trunks

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "llama3-405b_16384gpu.toml"
GPUS = 16384
LAYOUTS = 60000
LEAST_RATE = 3000.0
MOST_SECONDS = 20.0
EXAMPLE = re.compile(r"(```bash\n(torchlayout plan [^\n]*)\n```\n\n```text\n).*?(```)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=Path, metavar="FILE", help="a guide whose examples are run and written")
    arguments = parser.parse_args()
    if arguments.examples:
        write_examples(arguments.examples)
        return 0
    rate = screening_rate(ask(Config.load(CONFIG), GPUS))
    question = ask(Config.load(CONFIG), GPUS)
    start = time.process_time()
    found = answer(question, at_least=10).found
    print(f"search and refinement  {time.process_time() - start:6.2f} s of CPU for llama3-405b on {GPUS:,} H100")
    print(f"                       {found.considered:,} layouts considered, {found.priced:,} priced")
    seconds = command_seconds("plan", str(CONFIG), "--gpus", str(GPUS))
    print(f"the whole command      {seconds:6.2f} s of CPU")
    print(f"start                  {command_seconds('plan', '--help'):6.2f} s of CPU")
    print(f"screening              {rate:6,.0f} layouts a second")
    return 0 if rate >= LEAST_RATE and seconds <= MOST_SECONDS else 1


def screening_rate(question: Question) -> float:
    """Layouts priced in a second: whole families, as the search prices them, drawn evenly over the space."""
    families = [family for trunk in trunks(question, with_context=False) for family in trunk.families]
    step = max(1, sum(family.size for family in families) // LAYOUTS)
    drawn = [
        family.member(level, shard) for family in families[::step] for level in family.levels for shard in family.shards
    ]
    start = time.process_time()
    for layout in drawn:
        estimate = question.machine.estimate(question.job(layout))
        estimate.fits(question.margin_gib)
    return len(drawn) / (time.process_time() - start)


def command_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "torchlayout", *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_examples(guide: Path) -> None:
    """Runs each command that has its output below it, from the root of the repository."""

    def run(match: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as folder:
            words = [word if word != "best.toml" else f"{folder}/best.toml" for word in shlex.split(match[2])]
            done = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env=os.environ | {"COLUMNS": "110"},
                capture_output=True,
                text=True,
                check=False,
            )
        lines = [line.rstrip() for line in done.stdout.replace(f"{folder}/", "").splitlines()]
        return match[1] + re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip("\n") + "\n" + match[3]

    guide.write_text(EXAMPLE.sub(run, guide.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
