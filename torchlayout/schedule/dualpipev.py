"""The DualPipeV schedule: DualPipe cut in half into a V of two stages on each rank (arXiv 2412.19437)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from torchlayout.schedule.action import Action, Kind


def dualpipev(rank: int, ranks: int, virtual: int, micro_batches: int) -> Iterator[Action]:
    """The work of one rank; torch's overlapped pair of forward and backward is one after the other."""
    return _Rank(rank, ranks, micro_batches).work()


class _Rank:
    """One rank with its counts of what is done and its weight gradients that wait."""

    def __init__(self, rank: int, ranks: int, micro_batches: int) -> None:
        self.rank, self.ranks, self.micro_batches = rank, ranks, micro_batches
        self.down, self.up = rank, 2 * ranks - 1 - rank
        self.done: Counter[tuple[str, int]] = Counter()
        self.waiting: deque[Action] = deque()

    def work(self) -> Iterator[Action]:
        """The eight phases of DualPipeV."""
        rank, after = self.rank, self.ranks - 1 - self.rank
        down, up = self.down, self.up
        for _ in range(2 * after):
            yield self.forward(down)
        for _ in range(rank + 1):
            yield self.forward(down)
            yield self.forward(up)
        for _ in range(after):
            yield self.backward(up, "I")
            yield from self.weight()
            yield self.forward(up)
        for _ in range(self.micro_batches - 2 * self.ranks + rank + 1):
            yield self.forward(down)
            yield self.backward(up, "B")
            yield self.forward(up)
            yield self.backward(down, "B")
        for _ in range(after):
            yield self.backward(up, "B")
            yield self.forward(up)
            yield self.backward(down, "B")
        yield from self.drain()

    def drain(self) -> Iterator[Action]:
        """The last backwards: in halves from the middle on, so that weight gradients fill the bubble."""
        rank, after = self.rank, self.ranks - 1 - self.rank
        turns = 2 * (rank + 1)
        # So many of the alternating backwards up, down, up, ... are whole, the others in halves.
        whole = 2 * ((rank + 1) // 2) + (1 if rank % 2 == 0 else 0)
        for turn in range(turns):
            yield self.backward(self.up if turn % 2 == 0 else self.down, "B" if turn < whole else "I")
        for _ in range(after):
            yield from self.weight()
            yield self.backward(self.down, "I")
        for _ in range(rank + 1):
            yield from self.weight()

    def forward(self, stage: int) -> Action:
        return Action("F", stage, self._next("F", stage))

    def backward(self, stage: int, kind: Kind) -> Action:
        action = Action(kind, stage, self._next("backward", stage))
        if kind == "I":
            self.waiting.append(action._replace(kind="W"))
        return action

    def weight(self) -> Iterator[Action]:
        if self.waiting:
            yield self.waiting.popleft()

    def _next(self, kind: str, stage: int) -> int:
        self.done[kind, stage] += 1
        return self.done[kind, stage] - 1
