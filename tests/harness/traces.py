"""Chrome traces of ranks that never ran, as torch.profiler writes them; times are microseconds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from torchlayout.schedule import Event
from torchlayout.trace.ranges import Phase, Range

REAL = Path(__file__).parents[3] / "shared" / "traces"
"""Beside the repository: the files belong to their authors and never go into it."""

BASE_NANOSECONDS = 1_700_000_000_000_000_000
LOOP, DEVICE, BACKEND = 1, 7, 99
PHASE_OF = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


def real(name: str) -> Path:
    """A trace of other people's; the test is skipped where it is not there."""
    if not (path := REAL / name).is_file():
        pytest.skip(f"{path} is not there: other people's traces are kept beside the repository")
    return path


@dataclass
class Traced:
    """The trace of one rank, event by event.

    ahead: by how many microseconds the clock of its host is ahead. groups: (name, description, ranks). header:
    what else the file says.
    """

    rank: int = 0
    world: int = 1
    host: str = "a"
    ahead: float = 0
    groups: Sequence[tuple[str, str, Sequence[int]]] = ()
    device_name: str | None = None
    header: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    launched: int = 0

    def add(self, kind: str, name: str, start: float, end: float, thread: int = LOOP, **args: Any) -> dict[str, Any]:
        """Any event with a duration."""
        event = {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": thread, "ts": start + self.ahead}
        event |= {"dur": end - start, "args": args}
        self.events.append(event)
        return event

    def mark(self, phase: Phase, start: float, end: float, **numbers: int) -> None:
        """A range of the trainer."""
        self.add("user_annotation", str(Range(phase, **numbers)), start, end)

    def op(self, name: str, start: float, end: float, **args: Any) -> None:
        """An operator of the thread that runs the loop."""
        self.add("cpu_op", name, start, end, **args)

    def kernel(
        self, name: str, start: float, end: float, launched: float | None = None, stream: int = DEVICE, **args: Any
    ) -> None:
        """A kernel, and its launch where one is given."""
        if launched is not None:
            self.launched += 1
            args["correlation"] = self.launched
            self.add("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, correlation=self.launched)
        self.add("kernel", name, start, end, stream, **args)

    def nccl(
        self,
        collective: str,
        start: float,
        end: float,
        group: str,
        *,
        elements: int = 0,
        dtype: str = "BFloat16",
        stream: int = 20,
        launched: float | None = None,
        **args: Any,
    ) -> None:
        """A kernel of NCCL with what it says of itself; group: the name of one in `groups`."""
        described = next(one for one in self.groups if one[0] == group)
        told = {
            "Collective name": collective,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "dtype": dtype,
            "Process Group Name": group,
            "Process Group Description": described[1],
            "Process Group Ranks": str(list(described[2])),
        }
        name = f"ncclDevKernel_{collective.strip('_')}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.kernel(name, start, end, launched, stream, **(told | args))

    def gloo(
        self,
        asked: str,
        start: float,
        end: float,
        *,
        issued: float | None = None,
        carried_out: str | None = None,
        elements: int = 8,
        peer: int | None = None,
    ) -> None:
        """A transfer of gloo and the operator that asked for it."""
        inputs = ["", "", str(peer)] if peer is not None else ["", ""]
        args = {"Input Dims": [[elements], []], "Input type": ["float", ""], "Concrete Inputs": inputs}
        at = start - 1 if issued is None else issued
        self.op(f"c10d::{asked}_", at, at + 1, **args)
        name = f"gloo:{carried_out or asked}"
        self.add("user_annotation", name, start, end, BACKEND, **{"Input Dims": [[elements]], "Input type": ["float"]})

    def document(self) -> dict[str, Any]:
        """What torch.profiler would write."""
        config = [
            {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": list(ranks)}
            for name, description, ranks in self.groups
        ]
        return {
            "schemaVersion": 1,
            "deviceProperties": [] if self.device_name is None else [{"id": 0, "name": self.device_name}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world, "pg_config": config},
            "host_name": self.host,
            "baseTimeNanoseconds": BASE_NANOSECONDS,
            "traceEvents": self.events,
            **self.header,
        }

    def write(self, folder: Path) -> Path:
        """The file of a rank, as the trainer names it."""
        path = folder / f"rank{self.rank}.{self.host}.pt.trace.json.gz"
        return write_trace(path, self.document())


def write_trace(path: Path, document: object) -> Path:
    """A trace, under gzip where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


def write_all(folder: Path, traces: Sequence[Traced]) -> Path:
    """The folder, with the file of each rank."""
    for trace in traces:
        trace.write(folder)
    return folder


def pipeline_group(ranks: int) -> list[tuple[str, str, Sequence[int]]]:
    """The only group of a world that is one pipeline."""
    return [("1", "mesh_pp", range(ranks))]


def host_pipeline(timeline: Sequence[Sequence[Event]], step_end: float, unit: float = 100.0) -> list[Traced]:
    """Ranks of a pipeline that compute on their hosts what a timeline says, `unit` microseconds a second of it."""
    traces = []
    for rank, events in enumerate(timeline):
        trace = Traced(rank, len(timeline), groups=pipeline_group(len(timeline)))
        trace.mark("step", 0, step_end * unit, step=1)
        for event in events:
            start, end = event.start * unit, event.end * unit
            phase: Any = PHASE_OF[event.action.kind]
            trace.mark(phase, start, end, stage=event.action.stage, micro_batch=event.action.micro_batch)
            trace.op("aten::mm", start, end)
        traces.append(trace)
    return traces


def device_pipeline(
    timeline: Sequence[Sequence[Event]], step_end: float, unit: float = 100.0, hop: float = 0.0
) -> list[Traced]:
    """The same on devices: launched long before, and a receive kernel spins between micro-batches.

    hop: microseconds that a receive goes on after the neighbour has computed; a timeline with that hop is meant.
    """
    traces = []
    for rank, events in enumerate(timeline):
        trace = Traced(rank, len(timeline), groups=pipeline_group(len(timeline)), device_name="NVIDIA H100")
        trace.mark("step", 0, step_end * unit, step=1)
        reached = 0.0
        for number, event in enumerate(events):
            start, end = event.start * unit, event.end * unit
            launched = 2.0 * number / max(1, len(events))
            if start > reached:
                trace.nccl("recv", reached, start, "1", launched=launched, **{"Src Rank": (rank - 1) % len(timeline)})
            phase: Any = PHASE_OF[event.action.kind]
            numbers = {"stage": event.action.stage, "micro_batch": event.action.micro_batch}
            trace.mark(phase, launched, launched + 1 / max(1, len(events)), **numbers)
            trace.kernel("nvjet_tst_128x256_64x4_NNT", start, end, launched + 0.1 / max(1, len(events)))
            reached = end
        traces.append(trace)
    return traces


def shares_of(document: Mapping[str, Any], rank: int = 0, step: int = 0) -> dict[str, float]:
    """Microseconds of a rank's shares; step: its place among those of the document."""
    (found,) = [one for one in document["steps"][step]["ranks"] if one["rank"] == rank]
    return {name: round(value * 1e6, 3) for name, value in found["shares"].items()}


def row_of(document: Mapping[str, Any], rank: int = 0, step: int = 0) -> Mapping[str, Any]:
    """All that a document says of a rank in a step."""
    (found,) = [one for one in document["steps"][step]["ranks"] if one["rank"] == rank]
    return dict(found)
