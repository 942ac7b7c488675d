"""How often each kernel or operator ran, and how long, by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchlayout.trace.activity import Kernel, Step
from torchlayout.trace.rank import Columns

OUTSIDE = -1


def count_kernels(
    columns: Columns, names: Sequence[str], kinds: Sequence[str | None], steps: Sequence[Step]
) -> tuple[Kernel, ...]:
    """A row for each name and the step in which it started; kinds: by name, those of None are left out."""
    starts = np.array([step.start for step in steps], dtype=np.int64)
    ends = np.array([step.end for step in steps], dtype=np.int64)
    place = np.searchsorted(starts, columns.start, side="right") - 1
    inside = (place >= 0) & (columns.start < ends[np.maximum(place, 0)])
    both = columns.name * (len(steps) + 1) + np.where(inside, place + 1, 0)
    found, which = np.unique(both, return_inverse=True)
    runs, spent = np.bincount(which), np.bincount(which, weights=columns.end - columns.start)
    rows = []
    for key, count, time in zip(found.tolist(), runs.tolist(), spent.tolist(), strict=True):
        name, of_step = divmod(key, len(steps) + 1)
        kind = kinds[name]
        if kind is not None:
            number = steps[of_step - 1].number if of_step else OUTSIDE
            rows.append(Kernel(names[name], kind, count, int(time), number))
    return tuple(rows)
