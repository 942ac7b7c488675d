"""The accounts of a CUDA allocator, on an imitation of its counters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchlayout.train.environment import MemoryMeter
from torchlayout.train.phases import PhaseMemory


class Allocator:
    """What torch.cuda counts: bytes held now, and their peak since it was reset."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.recording: list[str | None] = []

    def hold(self, held: int) -> None:
        self.now = held
        self.peak = max(self.peak, held)

    def reset(self, device: torch.device) -> None:
        self.peak = self.now

    def record(self, enabled: str | None = "all", **options: object) -> None:
        self.recording.append(enabled)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    fake = Allocator()
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: fake.peak)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: fake.now)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", fake.reset)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fake.record)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda name: Path(name).write_bytes(b"snapshot"))
    return fake


@pytest.fixture
def meter() -> MemoryMeter:
    return MemoryMeter(torch.device("cuda", 0))


def test_the_peak_of_a_run_outlives_the_borders_at_which_it_is_reset(allocator: Allocator, meter: MemoryMeter) -> None:
    allocator.hold(100)
    allocator.hold(20)
    assert (meter.peak_bytes(), meter.lap_bytes()) == (100, 100)
    assert (meter.lap_bytes(), meter.peak_bytes()) == (20, 100)
    allocator.hold(130)
    assert meter.peak_bytes() == 130


def test_a_phase_has_its_highest_peak_and_its_last_end(
    allocator: Allocator, meter: MemoryMeter, tmp_path: Path
) -> None:
    allocator.hold(500)  # before the profile, and so in no phase
    allocator.hold(10)
    memory = PhaseMemory(meter, rank=3)
    with memory.step(7):
        for peak, end in ((50, 30), (40, 35)):
            with memory.phase("forward"):
                allocator.hold(peak)
                allocator.hold(end)
        allocator.hold(90)  # between two phases
        allocator.hold(15)
        with memory.phase("optimizer"):
            allocator.hold(15)
    with memory.step(8):
        pass
    assert meter.peak_bytes() == 500
    memory.write(tmp_path)
    memory.close()
    found = json.loads((tmp_path / "rank3.memory.json").read_text())
    assert (found["version"], found["rank"], found["device"], found["measure"]) == (1, 3, "cuda", "allocator")
    assert found["steps"] == [
        {
            "step": 7,
            "phases": [
                {"phase": "forward", "peak_bytes": 50, "end_bytes": 35},
                {"phase": "optimizer", "peak_bytes": 15, "end_bytes": 15},
                {"phase": "step", "peak_bytes": 90, "end_bytes": 15},
            ],
        },
        {"step": 8, "phases": [{"phase": "step", "peak_bytes": 15, "end_bytes": 15}]},
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank3.memory.json", "rank3.memory.pickle"]
    assert allocator.recording == ["all", None]


def test_memory_of_a_host_is_what_is_resident() -> None:
    host = MemoryMeter(torch.device("cpu"))
    before = host.now_bytes()
    held = torch.ones(2**23)  # 32 MiB
    grown = host.now_bytes() - before
    assert held.nbytes * 0.9 < grown < held.nbytes * 1.5
    assert host.lap_bytes() == pytest.approx(host.now_bytes(), rel=0.01)
