"""Clocks of different hosts brought together: the ranks of a collective end it at the same moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from torchlayout.trace.activity import Activity, Step, Transfer
from torchlayout.trace.meet import Meetings

# Traces of one host share its clock, and their own times are better than any estimate.
Offsets = dict[str, int]


def aligned(activities: Sequence[Activity]) -> list[Activity]:
    """The same on the clock of the first rank's host.

    Hosts that share no collective with it, directly or through others, begin their first common step with it instead.
    """
    activities = _by_clock(activities)
    hosts = list(dict.fromkeys(activity.host for activity in activities))
    if len(hosts) < 2:
        return list(activities)
    offsets: Offsets = {hosts[0]: 0}
    ahead = _ahead(activities)
    while reached := next(((a, b) for a, b in ahead if a in offsets and b not in offsets), None):
        offsets[reached[1]] = offsets[reached[0]] + ahead[reached]
    for host in hosts:
        if host not in offsets:
            offsets[host] = _first_start(activities, host) - _first_start(activities, hosts[0])
    return [_moved(activity, -offsets[activity.host]) for activity in activities]


def _by_clock(activities: Sequence[Activity]) -> list[Activity]:
    """The same, each rank a host of its own where the clocks of equally named hosts cannot be one."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    apart = set()
    for activity in activities:
        for step in activity.steps:
            start, end = spans.get((activity.host, step.number), (step.start, step.end))
            if step.start > end or step.end < start:
                apart.add(activity.host)
            spans[activity.host, step.number] = min(start, step.start), max(end, step.end)
    return [replace(one, host=f"{one.host}/{one.rank}") if one.host in apart else one for one in activities]


def _ahead(activities: Sequence[Activity]) -> dict[tuple[str, str], int]:
    """By how much the second host's clock is ahead of the first's: the median over what both took part in.

    Of each collective its first host is held against the others: that connects them all, and 256 hosts are no 65,000
    pairs.
    """
    host_of = {activity.rank: activity.host for activity in activities}
    differences: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for together in Meetings(activities).all():
        ends = {host_of[rank]: transfer.end for rank, transfer in together.items()}
        one, *others = sorted(ends)
        for other in others:
            differences[one, other].append(ends[other] - ends[one])
            differences[other, one].append(ends[one] - ends[other])
    return {pair: int(median(values)) for pair, values in differences.items()}


def _first_start(activities: Sequence[Activity], host: str) -> int:
    return min(step.start for activity in activities if activity.host == host for step in activity.steps)


def _moved(activity: Activity, by: int) -> Activity:
    def step(one: Step) -> Step:
        return one._replace(start=one.start + by, end=one.end + by)

    def transfer(one: Transfer) -> Transfer:
        issued = None if one.issued is None else one.issued + by
        return one._replace(start=one.start + by, end=one.end + by, issued=issued)

    return replace(
        activity,
        steps=tuple(map(step, activity.steps)),
        compute={kind: spans + by for kind, spans in activity.compute.items()},
        optimizer=activity.optimizer + by,
        phases={phase: spans + by for phase, spans in activity.phases.items()},
        work=tuple(one._replace(start=one.start + by, end=one.end + by) for one in activity.work),
        transfers=tuple(map(transfer, activity.transfers)),
    )
