"""Kills ranks of a run at random moments, and compares what comes out with a run that nobody disturbed.

python benchmarks/crash.py [--kills 50] [--steps 400] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.crash import facts_that_must_not_depend_on_crashes, train
from torchlayout.data.prepare import prepare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, corpus = Path(name), Path(name) / "tokens"
        prepare([__file__], corpus)
        undisturbed, _, _ = train(corpus, folder / "undisturbed", arguments.steps)
        killed, kills, in_saves = train(
            corpus, folder / "killed", arguments.steps, kills=arguments.kills, seed=arguments.seed
        )
        ours, expected = map(facts_that_must_not_depend_on_crashes, (killed, undisturbed))
    differing = [name for name in expected if ours[name] != expected[name]]
    print(f"{kills} kills, {in_saves} of them while a checkpoint was being written, over {arguments.steps} steps")
    print(f"final loss {ours['steps'][-1][1]!r} and {expected['steps'][-1][1]!r} undisturbed, {ours['lines']} lines")
    print(f"differing: {', '.join(differing) or 'nothing'}")
    return 1 if differing or kills < arguments.kills else 0


if __name__ == "__main__":
    sys.exit(main())
