"""Memory by phase: the peak and the end of every phase of the profiled steps, and on CUDA what the allocator did."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchlayout.files import write_atomically
from torchlayout.trace.ranges import Phase
from torchlayout.train.environment import MemoryMeter

VERSION = 1
HISTORY_ENTRIES = 200_000
"""Allocations and frees that a snapshot keeps, the newest ones."""


class PhaseMemory:
    """What a rank holds in each phase. A phase that comes several times in a step has its highest peak and last end.

    Peaks are the allocator's on CUDA. On a CPU memory is read where phases begin and end, and not in between.
    """

    def __init__(self, meter: MemoryMeter, rank: int) -> None:
        self.meter, self.rank = meter, rank
        self.steps: list[dict[str, Any]] = []
        self.phases: dict[Phase, dict[str, Any]] = {}
        self.step_peak = 0
        if self.recorded:
            # No public API records the history of allocations.
            torch.cuda.memory._record_memory_history(stacks="python", max_entries=HISTORY_ENTRIES)

    @property
    def recorded(self) -> bool:
        """Whether there is an allocator to take a snapshot of."""
        return self.meter.measure == "allocator"

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Measure the phases of this step; the last of them, `step`, is the whole."""
        self.meter.lap_bytes()  # what was before is not of this step
        self.phases, self.step_peak = {}, self.meter.now_bytes()
        self.steps.append({"step": number, "phases": []})
        yield
        self.lap()
        self.add("step", self.step_peak)
        self.steps[-1]["phases"] = list(self.phases.values())

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Measure one phase; phases lie next to each other, not in each other."""
        begin = self.lap()
        yield
        # On a host the two readings at its borders are all that is known of a phase.
        self.add(phase, self.lap() if self.recorded else max(begin, self.lap()))

    def lap(self) -> int:
        """The most that was held since the last border, in bytes."""
        peak = self.meter.lap_bytes()
        self.step_peak = max(self.step_peak, peak)
        return peak

    def add(self, phase: Phase, peak_bytes: int) -> None:
        """Count a phase that ends now."""
        entry = self.phases.setdefault(phase, {"phase": phase, "peak_bytes": 0, "end_bytes": 0})
        entry["peak_bytes"] = max(entry["peak_bytes"], peak_bytes)
        entry["end_bytes"] = self.meter.now_bytes()

    def write(self, folder: Path) -> None:
        """Leave rank<R>.memory.json, and on CUDA rank<R>.memory.pickle; raises OSError."""
        facts = {"version": VERSION, "rank": self.rank, "device": self.meter.device.type}
        facts |= {"measure": self.meter.measure, "steps": self.steps}
        write_atomically(folder / f"rank{self.rank}.memory.json", json.dumps(facts, indent=1) + "\n")
        if self.recorded:
            self._write_snapshot(folder / f"rank{self.rank}.memory.pickle")

    def close(self) -> None:
        """Stop recording."""
        if self.recorded:
            torch.cuda.memory._record_memory_history(enabled=None)  # no public API, as above

    def _write_snapshot(self, path: Path) -> None:
        half = path.with_name(f".{path.name}.{os.getpid()}.half")
        try:
            # No public API writes a snapshot in the format that pytorch.org/memory_viz reads.
            torch.cuda.memory._dump_snapshot(str(half))
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
