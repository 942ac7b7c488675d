"""The activity of a rank whose device computes: kernels, each charged to what the host was at when it launched it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchlayout.trace.activity import CLASSES, Activity, Transfer, Work
from torchlayout.trace.intervals import EMPTY, inside, union
from torchlayout.trace.kernels import count_kernels
from torchlayout.trace.marks import Marks, read_marks
from torchlayout.trace.names import POINT_TO_POINT, axis, collective, is_communication, kernel_class
from torchlayout.trace.rank import RankTrace
from torchlayout.trace.read import whole

WIDTHS = {"double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "bool": 1}


def device_activity(trace: RankTrace) -> Activity:
    """What the kernels of a trace did."""
    marks = read_marks(trace)
    kernels = trace.kernels
    kinds = _kinds(trace)
    launched = _launch_times(trace)
    spans = kernels.spans()
    computing = kinds != len(CLASSES)
    return Activity(
        rank=trace.rank,
        host=trace.host,
        device=trace.device,
        device_name=trace.device_name,
        world=trace.world,
        steps=marks.steps,
        compute={name: union(spans[kinds == index]) for index, name in enumerate(CLASSES)},
        optimizer=union(spans[computing & inside(launched, marks.phases.get("optimizer", EMPTY))]),
        phases=marks.phases,
        work=_work(marks, launched[computing], kernels.start[computing], kernels.end[computing]),
        transfers=tuple(_transfers(trace, launched, inside(launched, marks.phases.get("exchange", EMPTY)))),
        kernels=count_kernels(kernels, trace.names, _labels(trace), marks.steps),
        pipeline=trace.pipeline,
        notes=trace.notes,
    )


def _labels(trace: RankTrace) -> list[str]:
    """The class of each name."""
    return ["communication" if is_communication(name) else kernel_class(name) for name in trace.names]


def _kinds(trace: RankTrace) -> NDArray[np.int64]:
    """The class of each kernel as its index in CLASSES, len(CLASSES) for communication."""
    known = (*CLASSES, "communication")
    of_name = np.array([known.index(label) for label in _labels(trace)], dtype=np.int64)
    kinds: NDArray[np.int64] = of_name[trace.kernels.name]
    return kinds


def _launch_times(trace: RankTrace) -> NDArray[np.int64]:
    """When the host launched each kernel; its own start where the trace does not say."""
    if not len(trace.launches):
        return trace.kernels.start
    order = np.argsort(trace.launches.link, kind="stable")
    links = trace.launches.link[order]
    place = np.clip(np.searchsorted(links, trace.kernels.link), 0, len(links) - 1)
    known = links[place] == trace.kernels.link
    return np.where(known, trace.launches.start[order][place], trace.kernels.start)


def _work(
    marks: Marks, launched: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[Work, ...]:
    """When the device computed each micro-batch: from its first kernel to its last."""
    order = np.argsort(launched, kind="stable")
    launched, starts, ends = launched[order], starts[order], ends[order]
    found = []
    for mark in marks.own:
        first, last = np.searchsorted(launched, (mark.start, mark.end))
        if mark.range.micro_batch is not None and last > first:
            found.append(mark.work(int(starts[first:last].min()), int(ends[first:last].max())))
    return tuple(sorted(found, key=lambda work: work.start))


def _transfers(trace: RankTrace, launched: NDArray[np.int64], exchanging: NDArray[np.bool_]) -> list[Transfer]:
    """exchanging: which kernels the host launched for what all ranks tell each other."""
    found = []
    unknown = "pp" if _ranges_name_stages(trace) else "other"
    for index, args in sorted(trace.described.items()):
        name = trace.names[int(trace.kernels.name[index])]
        kind = collective(str(args.get("Collective name") or name))
        found.append(
            Transfer(
                start=int(trace.kernels.start[index]),
                end=int(trace.kernels.end[index]),
                name=name,
                collective=kind,
                axis="world" if exchanging[index] else _axis(trace, args, kind, unknown),
                ranks=_ranks(trace, args),
                peer=_peer(args, kind),
                bytes=_bytes(args),
                issued=int(launched[index]),
            )
        )
    return found


def _axis(trace: RankTrace, args: dict[str, Any], kind: str, unknown: str) -> str:
    """unknown: what messages are taken for where the trace does not say."""
    group = trace.groups.get(str(args.get("Process Group Name")))
    if group is not None:
        # Sharding neither sends nor exchanges: over a group that is both axes it is the context's.
        ring = kind in POINT_TO_POINT or kind == "all_to_all"
        return "cp" if group.axis == "fsdp" and ring and trace.degrees.get("cp", 1) > 1 else group.axis
    described = args.get("Process Group Description")
    if described not in (None, "", "undefined"):
        return axis(str(described))
    return unknown if kind in POINT_TO_POINT else "other"


def _ranges_name_stages(trace: RankTrace) -> bool:
    return any(name.startswith("PP:") or " stage=1 " in name for name in trace.names)


def _ranks(trace: RankTrace, args: dict[str, Any]) -> tuple[int, ...]:
    group = trace.groups.get(str(args.get("Process Group Name")))
    if group is not None and group.ranks:
        return group.ranks
    listed = str(args.get("Process Group Ranks", ""))
    if "..." in listed:  # torch shortens long lists
        return ()
    return tuple(int(part) for part in listed.strip("[] ").replace(" ", "").split(",") if part.isdecimal())


def _peer(args: dict[str, Any], kind: str) -> int | None:
    told = args.get("Dst Rank" if kind == "send" else "Src Rank")
    return int(told) if isinstance(told, int) and told >= 0 else None


def _bytes(args: dict[str, Any]) -> int:
    elements = max(whole(args.get("In msg nelems")), whole(args.get("Out msg nelems")))
    return elements * WIDTHS.get(str(args.get("dtype", "")).lower(), 0)
