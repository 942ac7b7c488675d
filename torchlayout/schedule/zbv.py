"""The ZB-V schedule: two stages on each rank in a V, the backward in halves (arXiv 2401.10241, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torchlayout.schedule.action import Action, Kind


def zbv(rank: int, ranks: int, virtual: int, micro_batches: int) -> Iterator[Action]:
    """The work of one rank; down is its stage on the way to the last rank, up the one on the way back."""
    # The pattern is made for a full pipeline; with fewer micro-batches its missing ones are left out.
    full = max(2 * ranks - 1, micro_batches)
    yield from (action for action in _full(rank, ranks, full) if action.micro_batch < micro_batches)


def _full(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    down, up = rank, 2 * ranks - 1 - rank
    done: Counter[tuple[Kind, int]] = Counter()

    def run(stage: int, kinds: str) -> Iterator[Action]:
        for kind in kinds:
            key: tuple[Kind, int] = (kind, stage)  # type: ignore[assignment]
            yield Action(key[0], stage, done[key])
            done[key] += 1

    for _ in range(2 * (ranks - rank) - 1):
        yield from run(down, "F")
    for _ in range(rank):
        yield from run(up, "F")
        yield from run(down, "F")
    for _ in range(ranks - rank):
        yield from run(up, "FIW")
    while done["F", up] < micro_batches:
        yield from run(down, "FIW" if done["F", down] < micro_batches else "IW")
        yield from run(up, "FIW")
    for _ in range(rank):
        yield from run(down, "I")
        yield from run(up, "I")
    for _ in range(ranks - rank):
        yield from run(down, "IW")
    for stage in (up, down):
        while done["W", stage] < done["I", stage]:
            yield from run(stage, "W")
