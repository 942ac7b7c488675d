"""Which events of different ranks are the same collective or message, and when the last of them came to it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchlayout.trace.activity import Activity, Transfer
from torchlayout.trace.names import POINT_TO_POINT

Key = tuple[object, ...]


class Meetings:
    """The transfers that are known on more than one rank."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        self.taking: defaultdict[Key, dict[int, Transfer]] = defaultdict(dict)
        self.keys: dict[tuple[int, Transfer], Key] = {}
        for activity in activities:
            for key, transfer in _numbered(activity):
                self.taking[key][activity.rank] = transfer
                self.keys[activity.rank, transfer] = key
        self.last_starts = {
            key: max(one.start for one in together.values())
            for key, together in self.taking.items()
            if len(together) > 1
        }

    def last_start(self, rank: int, transfer: Transfer) -> int | None:
        """When the last rank that is known came to this transfer; None where no other rank is known."""
        key = self.keys.get((rank, transfer))
        return None if key is None else self.last_starts.get(key)

    def all(self) -> list[dict[int, Transfer]]:
        """Each transfer as the ranks that took part saw it."""
        return list(self.taking.values())


def settled(activities: Sequence[Activity]) -> list[Activity]:
    """The same, with messages of hosts that end once both sides have them.

    gloo shows a message until somebody asks whether it has arrived: a send of a pipeline may seem to last all step.
    """
    meetings = Meetings(activities)
    return [
        replace(one, transfers=tuple(_settled(one.rank, each, meetings) for each in one.transfers))
        if one.device == "cpu"
        else one
        for one in activities
    ]


def _settled(rank: int, transfer: Transfer, meetings: Meetings) -> Transfer:
    key = meetings.keys.get((rank, transfer))
    if transfer.collective not in POINT_TO_POINT or key is None:
        return transfer
    arrived = min(one.end for one in meetings.taking[key].values())
    return transfer._replace(end=max(transfer.start, min(transfer.end, arrived)))


def _numbered(activity: Activity) -> Iterator[tuple[Key, Transfer]]:
    """Each transfer with what names it on every rank: who with, what, and the how-manieth of its step.

    Of the step in which the host started it, as that is the same on all ranks: a device may be steps behind its host,
    and is so by more on one rank than on another. What was started before the first step is not known on all.
    """
    counts: defaultdict[Key, int] = defaultdict(int)
    starts = [step.start for step in activity.steps]
    for transfer in sorted(activity.transfers, key=_issued):
        place = bisect_right(starts, _issued(transfer)) - 1
        if place >= 0 and (party := _party(activity.rank, transfer)) is not None:
            of_step = (activity.steps[place].number, *party)
            yield (*of_step, counts[of_step]), transfer
            counts[of_step] += 1


def _issued(transfer: Transfer) -> int:
    return transfer.start if transfer.issued is None else transfer.issued


def _party(rank: int, transfer: Transfer) -> Key | None:
    if transfer.collective in POINT_TO_POINT:
        if transfer.peer is None or transfer.collective == "send_recv":
            return None
        ends = (rank, transfer.peer) if transfer.collective == "send" else (transfer.peer, rank)
        return (transfer.axis, "message", *ends)
    return (transfer.axis, transfer.collective, transfer.ranks) if len(transfer.ranks) > 1 else None
