"""The trace of one rank in compact columns: 3 million events take some 100 MB."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchlayout.errors import InputError
from torchlayout.trace.groups import Group, read_degrees, read_groups
from torchlayout.trace.names import is_communication
from torchlayout.trace.read import LARGEST, Event, read_events, whole

DEVICE_KINDS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
HOST_KINDS = frozenset({"cpu_op", "user_annotation"})
# What starts and what carries out a transfer of a host.
ON_HOST = ("c10d::", "gloo:")
RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Events as columns: nanoseconds, indexes of names, threads (or streams), and a number that links them.

    link: the correlation of launches and kernels; -1 where unknown.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    thread: NDArray[np.int64]
    link: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def spans(self) -> NDArray[np.int64]:
        """[number, 2]: start and end."""
        return np.stack([self.start, self.end], axis=1)

    def where(self, chosen: NDArray[Any]) -> Columns:
        """The events that a mask or indexes choose."""
        return Columns(*(getattr(self, name)[chosen] for name in ("start", "end", "name", "thread", "link")))


@dataclass(frozen=True)
class RankTrace:
    """What a trace says, sorted by start.

    device: cuda, rocm or cpu. degrees: of each axis, where the trainer said. ops: operators of the host. ranges: what
    was marked on the host. launches: what the host did to have work done on the device. kernels: that work. described:
    what is said of a communication kernel, by its index in kernels. issued: the same of the operators that start a
    communication, by their index in ops; carried: of the ranges that carry one out. notes: what could not be read.
    """

    path: Path
    rank: int
    world: int | None
    host: str
    device: str
    device_name: str | None
    groups: dict[str, Group]
    degrees: dict[str, int]
    names: list[str]
    ops: Columns
    ranges: Columns
    launches: Columns
    kernels: Columns
    described: dict[int, dict[str, Any]]
    issued: dict[int, dict[str, Any]]
    carried: dict[int, dict[str, Any]]
    notes: tuple[str, ...] = ()

    @property
    def pipeline(self) -> tuple[int, ...]:
        """The ranks of its pipeline; empty where there is none, or the trace does not say."""
        ranks = self.along("pp")
        return ranks if len(ranks) > 1 else ()

    def along(self, axis: str) -> tuple[int, ...]:
        """The ranks along an axis, itself among them; empty where the trace does not say."""
        if axis == "world" or 1 < self.degrees.get(axis, 0) == self.world:
            return tuple(range(self.world or 0))
        # The widest: `shard`, which is fsdp and cp as one, is described beside `fsdp`.
        return max((group.ranks for group in self.groups.values() if group.axis == axis), key=len, default=())


COLUMNS = len(fields(Columns))


class _Builder:
    """Rows of one kind of event; link: what links one to others, from its arguments, where anything does."""

    def __init__(self, link: Callable[[dict[str, Any]], int] | None = None) -> None:
        self.rows = array("q")  # one after the other: a row costs one call
        self.link = link
        self.described: dict[int, dict[str, Any]] = {}

    def add(self, event: Event, name: int, thread: int) -> None:
        start = int(float(event["ts"]) * 1000 + 0.5)
        end = start + int(float(event.get("dur", 0)) * 1000 + 0.5)
        if not -LARGEST < start <= end < LARGEST:
            raise ValueError("no time")
        link = -1 if self.link is None else self.link(_args(event))
        self.rows.extend((start, end, name, thread, link if -LARGEST < link < LARGEST else -1))

    def describe(self, args: dict[str, Any]) -> None:
        """Keep what is said of the event that was added last."""
        self.described[len(self.rows) // COLUMNS - 1] = args

    def finish(self) -> tuple[Columns, dict[int, dict[str, Any]]]:
        columns = Columns(*np.array(self.rows, dtype=np.int64).reshape(-1, COLUMNS).T)
        # Of events that start together the longer one encloses the others.
        order = np.lexsort((-columns.end, columns.start))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return columns.where(order), {int(place[index]): args for index, args in self.described.items()}


class _Collector:
    """Sorts events into columns as they are read."""

    def __init__(self) -> None:
        self.names: dict[Any, int] = {}
        self.shown: list[str] = []
        self.told: set[tuple[int, str]] = set()
        """Names, by index and kind of event, of which what else they say is kept."""
        self.threads: dict[Any, int] = {}
        self.ops, self.ranges = _Builder(), _Builder()
        self.launches, self.kernels = _Builder(_correlation), _Builder(_correlation)
        self.builders = {
            "cpu_op": self.ops,
            "user_annotation": self.ranges,
            "cuda_runtime": self.launches,
            "cuda_driver": self.launches,
            **dict.fromkeys(DEVICE_KINDS, self.kernels),
        }
        self.broken = 0

    def take(self, event: Event) -> None:
        kind = event.get("cat")
        builder = self.builders.get(kind) if isinstance(kind, str) else None
        if builder is None or event.get("ph") != "X":
            return
        try:
            name = self.names.get(event["name"])
            if name is None:
                name = self._new(event["name"])
            thread = self.threads.setdefault((event.get("pid"), event.get("tid")), len(self.threads))
            builder.add(event, name, thread)
        except (KeyError, TypeError, ValueError, OverflowError):  # damage, of this event alone
            self.broken += 1
            return
        if (name, kind) in self.told:
            builder.describe(_args(event))

    def _new(self, name: Any) -> int:
        """The index of a name that has not been met before."""
        index = self.names[name] = len(self.shown)
        self.shown.append(printable(str(name)))
        if is_communication(self.shown[index]):
            self.told.add((index, "kernel"))
        if self.shown[index].startswith(ON_HOST):
            self.told |= {(index, kind) for kind in HOST_KINDS}
        return index


def printable(name: str) -> str:
    """A name that no terminal takes for a command, and that every encoding can hold."""
    return name if name.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in name)


def _correlation(args: dict[str, Any]) -> int:
    return int(args.get("correlation", -1))


def _args(event: Event) -> dict[str, Any]:
    return _table(event, "args")


def _table(of: dict[str, Any], name: str) -> dict[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def elements(args: dict[str, Any]) -> list[int]:
    """Elements of each tensor (or list of tensors) that an operator was given; nothing where it does not say."""
    dims = args.get("Input Dims")
    return [_elements(shape) for shape in dims if shape] if isinstance(dims, list) else []


def _elements(shape: object) -> int:
    """0 for what is no shape."""
    if not isinstance(shape, list):
        return 0
    if shape and isinstance(shape[0], list):
        return sum(map(_elements, shape))
    found = math.prod(map(whole, shape))
    return found if found < LARGEST else 0


def read_rank(path: Path) -> RankTrace:
    """The trace of one rank; raises InputError for a file that is no trace or holds nothing that was timed."""
    header: dict[str, Any] = {}
    collector = _Collector()
    cut_short = read_events(path, header, collector.take)
    (ops, issued), (ranges, carried), (launches, _), (kernels, described) = (
        part.finish() for part in (collector.ops, collector.ranges, collector.launches, collector.kernels)
    )
    if not len(ops) and not len(ranges) and not len(kernels):
        if cut_short:
            raise InputError(f"{path} ends before its first operator, kernel or range")
        raise InputError(f"{path} holds no operator, kernel or range; is it a trace of torch.profiler?")
    spread = _table(header, "distributedInfo")
    named = RANK_IN_NAME.search(path.name)
    notes = [cut_short] if cut_short else []
    if collector.broken:
        notes.append(f"{path}: {collector.broken} events have no usable time or name and were left out")
    trace = RankTrace(
        path=path,
        rank=whole(spread.get("rank", named[1] if named else 0)),
        world=whole(spread.get("world_size")) or None,
        host=str(header.get("host_name", "")),
        device=_device(len(kernels), collector.shown),
        device_name=_device_name(header),
        groups=read_groups(header),
        degrees=read_degrees(header),
        names=collector.shown,
        ops=ops,
        ranges=ranges,
        launches=launches,
        kernels=kernels,
        described=described,
        issued=issued,
        carried=carried,
        notes=tuple(notes),
    )
    return _moved(trace, whole(header.get("baseTimeNanoseconds")))


def _moved(trace: RankTrace, base: int) -> RankTrace:
    """Times since the epoch: traces of the same host have bases of their own."""
    for columns in (trace.ops, trace.ranges, trace.launches, trace.kernels):
        columns.start[:] += base
        columns.end[:] += base
    return trace


def _device(kernels: int, names: list[str]) -> str:
    if not kernels:
        return "cpu"
    return "rocm" if any(name.startswith("hip") or name.startswith("Cijk_") for name in names) else "cuda"


def _device_name(header: dict[str, Any]) -> str | None:
    devices = header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    return str(first["name"]) if isinstance(first, dict) and "name" in first else None
