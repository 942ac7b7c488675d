"""Which events of different ranks are the same collective or message, and when the last of them came to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from torchlayout.trace.activity import Activity, Step, Transfer
from torchlayout.trace.names import POINT_TO_POINT

Key = tuple[object, ...]


class Meetings:
    """The transfers of a step that are known on more than one rank."""

    def __init__(self, activities: Sequence[Activity], steps: Mapping[int, Step]) -> None:
        """steps: this step as each rank saw it."""
        self.taking: defaultdict[Key, dict[int, Transfer]] = defaultdict(dict)
        self.keys: dict[tuple[int, Transfer], Key] = {}
        for activity in activities:
            if activity.rank in steps:
                for key, transfer in _numbered(activity, steps[activity.rank]):
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


def _numbered(activity: Activity, step: Step) -> list[tuple[Key, Transfer]]:
    """Each transfer with what names it on every rank: who with, what, and the how-manieth in the step."""
    counts: defaultdict[Key, int] = defaultdict(int)
    numbered = []
    for transfer in sorted(activity.transferring(step)):
        if (party := _party(activity.rank, transfer)) is not None:
            numbered.append(((*party, counts[party]), transfer))
            counts[party] += 1
    return numbered


def _party(rank: int, transfer: Transfer) -> Key | None:
    if transfer.collective in POINT_TO_POINT:
        if transfer.peer is None or transfer.collective == "send_recv":
            return None
        ends = (rank, transfer.peer) if transfer.collective == "send" else (transfer.peer, rank)
        return (transfer.axis, "message", *ends)
    return (transfer.axis, transfer.collective, transfer.ranks) if len(transfer.ranks) > 1 else None
