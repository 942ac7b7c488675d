from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from torchlayout.layout import Layout
from torchlayout.parallel.mesh import build_meshes
from torchlayout.train import exchange
from torchlayout.train.environment import process_group
from torchlayout.train.exchange import RanksDisagree, StepFacts, exchange_step, sum_over_ranks

CPU = torch.device("cpu")


@pytest.fixture
def group() -> Iterator[None]:
    with process_group(CPU, 60):
        yield


class Ranks:
    """Collectives of several ranks, played by one process: what each rank gives is told beforehand."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = rows

    def all_gather(self, into: list[torch.Tensor], row: torch.Tensor) -> None:
        for target, given in zip(into, self.rows, strict=True):
            target.copy_(torch.tensor(given, dtype=row.dtype))

    def all_reduce(self, value: torch.Tensor) -> None:
        value.copy_(torch.tensor(self.rows, dtype=value.dtype).sum(0))


def row(
    digest: int, *, loss: float = 0.0, norm: float = 0.0, data_seconds: float = 0.0, peak: int = 0, stop: int = 0
) -> list[float]:
    return [loss, norm, float(digest >> 32), float(digest & 0xFFFFFFFF), data_seconds, float(peak), float(stop)]


def facts(label: str, rows: list[list[float]], monkeypatch: pytest.MonkeyPatch) -> StepFacts:
    """What the ranks of a layout know after an exchange in which each gave its row."""
    monkeypatch.setattr(exchange.dist, "all_gather", Ranks(rows).all_gather)
    monkeypatch.setattr(exchange.dist, "get_world_size", lambda: len(rows))
    meshes = type("Meshes", (), {"layout": Layout.parse(label)})
    zero = torch.zeros((), dtype=torch.float64)
    return exchange_step(
        meshes,  # type: ignore[arg-type]
        summed_loss=zero,
        squared_norm=zero,
        digest=0,
        data_seconds=0.0,
        peak_memory_bytes=0,
        stop=0,
    )


def test_digests_of_data_ranks_add_up_modulo_two_to_the_64(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [2**64 - 1, 2**64 - 2**32 + 5, 2**63 + 1, 0xFEDCBA9876543210]
    found = facts("dp2-fsdp2", [row(part) for part in parts], monkeypatch)
    assert found.batch_digest == f"{sum(parts) % 2**64:016x}"


def test_a_digest_has_16_characters_also_when_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts("fsdp2", [row(2**64 - 1), row(2)], monkeypatch).batch_digest == "0" * 15 + "1"


@pytest.mark.parametrize("label", ["pp2-fsdp2-tp2", "pp4-fsdp2", "fsdp2-tp4"])
def test_tensor_and_pipeline_ranks_must_have_the_digest_of_their_data_ranks(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout.parse(label)
    good = [row(10 + rank // layout.tensor % layout.shard) for rank in range(8)]
    assert facts(label, good, monkeypatch).batch_digest == f"{21:016x}"
    for rank in range(8):
        wrong = [row(99) if other == rank else given for other, given in enumerate(good)]
        with pytest.raises(RanksDisagree, match="different samples"):
            facts(label, wrong, monkeypatch)


def test_loss_is_that_of_all_stages_and_data_ranks_counted_on_one_tensor_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    # Order of ranks: pipeline, data, tensor. The last stage has the loss, on both of its tensor ranks.
    losses = [0, 0, 0, 0, 3, 3, 4, 4]
    rows = [row(5 + rank // 2 % 2, loss=loss, norm=rank) for rank, loss in enumerate(losses)]
    found = facts("pp2-fsdp2-tp2", rows, monkeypatch)
    assert found.summed_loss == 7.0
    assert found.grad_norm == pytest.approx(28**0.5)


def test_one_rank_that_is_not_finite_is_seen_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in (float("nan"), float("inf")):
        assert not torch.tensor(facts("dp2", [row(0), row(0, loss=bad)], monkeypatch).summed_loss).isfinite()
        assert not torch.tensor(facts("dp2", [row(0, norm=bad), row(0)], monkeypatch).grad_norm).isfinite()


def test_the_slowest_rank_and_every_peak_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = [3, 2**52 + 1]
    rows = [row(0, data_seconds=seconds, peak=peak) for seconds, peak in zip((0.5, 0.25), peaks, strict=True)]
    found = facts("fsdp2", rows, monkeypatch)
    assert found.data_seconds == 0.5
    assert found.peak_memory_bytes_by_rank == tuple(peaks)


def test_a_sum_over_ranks_wraps_around(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [2**64 - 1, 2**64 - 1, 12345, 2**32]
    monkeypatch.setattr(dist, "all_reduce", Ranks([[v >> 32, v & 0xFFFFFFFF] for v in values]).all_reduce)
    assert sum_over_ranks(values[0], CPU) == sum(values) % 2**64


def test_a_rank_that_is_told_to_stop_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts("dp2-fsdp2", [row(0), row(0), row(0, stop=15), row(0, stop=1)], monkeypatch).stop == 15
    assert facts("fsdp2", [row(0), row(0)], monkeypatch).stop == 0


@pytest.mark.usefixtures("group")
def test_one_process_hears_what_it_says() -> None:
    digest, loss = 0xFEDCBA9876543211, torch.tensor(2.5)
    found = exchange_step(
        build_meshes(Layout(), "cpu"),
        summed_loss=loss,
        squared_norm=torch.tensor(9.0, dtype=torch.float64),
        digest=digest,
        data_seconds=0.125,
        peak_memory_bytes=2**40 + 1,
        stop=15,
    )
    assert found == StepFacts(2.5, 3.0, 0.125, (2**40 + 1,), f"{digest:016x}", 15)
    assert sum_over_ranks(2**64 - 1, CPU) == 2**64 - 1
