"""The one event engine: when each action of a schedule starts and ends, by what it waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchlayout.schedule.action import Action


class Event(NamedTuple):
    """An action of a pipeline rank with its start and end, in seconds from the first start."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A priced schedule: events rank by rank, each rank's in the order of their execution."""

    ranks: tuple[tuple[Event, ...], ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """All events, rank by rank."""
        return tuple(event for events in self.ranks for event in events)

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return max((events[-1].end for events in self.ranks if events), default=0.0)

    def busy(self, rank: int) -> float:
        """Seconds in which a rank computes."""
        return sum(event.end - event.start for event in self.ranks[rank])

    def bubble(self, rank: int) -> float:
        """Fraction of the makespan in which a rank computes nothing."""
        return 1 - self.busy(rank) / self.makespan if self.makespan else 0.0

    def in_flight(self, rank: int) -> int:
        """The most micro-batches whose activations a rank holds at once, counted for each of its stages.

        A forward takes them, a full backward frees them; of a split backward only the weight gradient does.
        """
        held = most = 0
        for event in self.ranks[rank]:
            held += {"F": 1, "B": -1, "W": -1, "I": 0}[event.action.kind]
            most = max(most, held)
        return most


def timeline(
    actions: Sequence[Sequence[Action]], seconds: Callable[[Action], float], hop_seconds: float = 0.0
) -> Timeline:
    """When each action runs: in its rank's order, as soon as what it needs is there.

    `actions` has one list for each rank; `hop_seconds` is what an activation or a gradient takes to another
    rank; within a rank it takes nothing. Raises ValueError where ranks would wait for each other forever.
    """
    home = {action.stage: rank for rank, order in enumerate(actions) for action in order}
    last = max(home, default=0)
    events: list[list[Event]] = [[] for _ in actions]
    ended: dict[tuple[str, int, int], float] = {}
    waiting: defaultdict[tuple[str, int, int], list[int]] = defaultdict(list)
    ready = list(range(len(actions)))
    while ready:
        rank = ready.pop()
        order, done = actions[rank], events[rank]
        while len(done) < len(order):
            action = order[len(done)]
            needs = _needs(action, last)
            missing = next((need for need in needs if need not in ended), None)
            if missing is not None:
                waiting[missing].append(rank)
                break
            arrivals = [ended[n] + (hop_seconds if home[n[1]] != rank else 0.0) for n in needs]
            start = max([done[-1].end if done else 0.0, *arrivals])
            done.append(Event(rank, action, start, start + seconds(action)))
            for made in _makes(action):
                ended[made] = done[-1].end
                ready.extend(waiting.pop(made, ()))
    pairs = zip(actions, events, strict=True)
    stuck = [str(order[len(done)]) for order, done in pairs if len(done) < len(order)]
    if stuck:
        raise ValueError(f"the schedule can't run: {', '.join(stuck)} wait for each other")
    return Timeline(tuple(tuple(done) for done in events))


def _needs(action: Action, last_stage: int) -> list[tuple[str, int, int]]:
    """What must have ended before: the neighbour's output or gradient, and the same stage's earlier half."""
    kind, stage, micro_batch = action
    if kind == "F":
        return [("F", stage - 1, micro_batch)] if stage > 0 else []
    if kind == "W":
        return [("I", stage, micro_batch)]
    own = [("F", stage, micro_batch)]
    return own if stage == last_stage else [*own, ("I", stage + 1, micro_batch)]


def _makes(action: Action) -> list[tuple[str, int, int]]:
    # A full backward gives the input gradient as well; for those who wait the two are one.
    kind = "I" if action.kind == "B" else action.kind
    return [(kind, action.stage, action.micro_batch)]
