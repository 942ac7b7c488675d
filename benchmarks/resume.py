"""Saves under each of 8 layouts, continues each under each of the 8, and prints how far the next steps are apart.

python benchmarks/resume.py
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.resume import FURTHER, LAYOUTS, SAVED_AT, resume_pairs, save_under_each
from torchlayout.data.prepare import prepare

TOLERANCE = 1e-10


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder, corpus = Path(name), f"{name}/tokens"
        prepare([__file__], Path(corpus))
        expected = save_under_each(LAYOUTS, corpus, folder)
        resumed = resume_pairs(list(itertools.product(LAYOUTS, LAYOUTS)), corpus, folder)
    wrong = 0
    for (saved, label), outcome in resumed.items():
        apart = _apart(outcome, expected[saved])
        same_data = outcome["digests"] == expected[saved]["digests"]
        same_bits = outcome == expected[saved]
        good = apart <= TOLERANCE and same_data and (same_bits or saved != label)
        wrong += not good
        print(
            f"{'ok   ' if good else 'WRONG'} {saved:<18} -> {label:<18} losses and norms {apart:.1e}  "
            f"digests {'equal' if same_data else 'DIFFERENT'}{'  bit-identical' * same_bits}"
        )
    print(
        f"{len(resumed)} pairs, saved after step {SAVED_AT}, {FURTHER} further steps: {wrong} outside {TOLERANCE:.0e}"
    )
    return 1 if wrong else 0


def _apart(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    return max(
        abs(own - other) / abs(other)
        for part in ("losses", "norms")
        for own, other in zip(ours[part], theirs[part], strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
