from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchlayout.compare.conclusion import Candidate, conclude
from torchlayout.compare.speed import Ratio, interval, ratio, run_speed, spread


def step(number: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "step": number,
        "seconds": seconds,
        "data_seconds": 0.1 * seconds,
        "tokens_per_second": 100 / seconds,
        "tokens_per_second_per_device": 50 / seconds,
        "mfu": None,
        "hfu": None,
        "peak_memory_bytes": 7,
        "peak_memory_bytes_by_rank": [3, 7],
    } | more


def test_a_run_is_the_median_of_its_steps_after_the_warm_up() -> None:
    speed = run_speed([step(1, 60.0), step(2, 5.0), step(3, 1.0), step(4, 2.0), step(5, 9.0)], warmup_steps=2)
    assert speed is not None
    assert (speed.step_seconds, speed.tokens_per_second, speed.tokens_per_second_per_device) == (2.0, 50.0, 25.0)
    assert speed.data_seconds_fraction == pytest.approx(0.1)
    assert (speed.mfu, speed.hfu) == (None, None)
    assert run_speed([step(1, 1.0)], warmup_steps=1) is None


def test_traced_steps_at_the_end_count_neither_as_speed_nor_as_memory() -> None:
    steps = [step(1, 60.0), step(2, 5.0), step(3, 1.0)]
    steps[2] = {**steps[2], "peak_memory_bytes": 10**15}
    speed = run_speed(steps, warmup_steps=1, last_step=2)
    assert speed is not None
    assert speed.step_seconds == 5.0
    assert speed.peak_memory_bytes < 10**15


def test_memory_is_that_of_the_worst_rank_in_all_steps_also_those_of_the_warm_up() -> None:
    steps = [
        step(1, 1.0, peak_memory_bytes=90, peak_memory_bytes_by_rank=[10, 90, 80]),
        step(2, 1.0, peak_memory_bytes=50, peak_memory_bytes_by_rank=[50, 40, 30], mfu=0.5, hfu=0.6),
    ]
    speed = run_speed(steps, warmup_steps=1)
    assert speed is not None
    assert (speed.peak_memory_bytes, speed.peak_memory_rank) == (90, 1)
    assert (speed.mfu, speed.hfu) == (0.5, 0.6)


def test_the_spread_of_repeats_is_median_least_and_most() -> None:
    found = spread([3.0, 1.0, 2.0, 9.0])
    assert (found.median, found.low, found.high) == (2.5, 1.0, 9.0)


@pytest.mark.parametrize(
    ("repeats", "noise"),
    [(3, "normal"), (3, "uniform"), (3, "heavy tails"), (5, "normal"), (5, "heavy tails"), (10, "normal")],
)
def test_the_interval_holds_the_truth_as_often_as_it_says(repeats: int, noise: str) -> None:
    generator = np.random.default_rng(repeats)
    draw = {
        "normal": lambda: generator.normal(0, 1, repeats),
        "uniform": lambda: generator.uniform(-1, 1, repeats),
        "heavy tails": lambda: generator.standard_t(3, repeats),
    }[noise]
    truth, held, studies = 0.27, 0, 200
    for seed in range(studies):
        low, high = interval(truth + 0.01 * draw(), seed)
        held += low <= truth <= high
    # 200 studies at 95% hold 0.89 to 0.995 in all but a few of ten thousand tests.
    assert 0.89 <= held / studies <= 0.995


def test_a_percentile_bootstrap_of_three_repeats_would_not() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        values = generator.normal(0, 1, 3)
        means = generator.choice(values, (1000, 3)).mean(1)
        low, high = np.quantile(means, [0.025, 0.975])
        held += low <= 0 <= high
    assert held / 300 < 0.85


def test_a_ratio_of_known_truth_is_found_in_noise_of_one_percent() -> None:
    generator = np.random.default_rng(3)
    baseline = {repeat: 1.3 * generator.lognormal(0, 0.01) for repeat in range(1, 6)}
    layout = {repeat: 1.0 * generator.lognormal(0, 0.01) for repeat in range(1, 6)}
    found = ratio(baseline, layout)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.3 < found.high
    assert found.low < found.value < found.high
    assert found.high - found.low < 0.08
    assert found.difference_shown is True
    assert ratio(baseline, layout) == found


def test_a_drift_of_the_machine_cancels_in_interleaved_repeats() -> None:
    drift = {1: 1.0, 2: 1.5, 3: 2.2, 4: 3.0}
    found = ratio({k: 2.0 * slow for k, slow in drift.items()}, {k: 1.0 * slow for k, slow in drift.items()})
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_equal_speed_is_no_difference_shown() -> None:
    generator = np.random.default_rng(4)
    one, other = ({repeat: generator.lognormal(0, 0.02) for repeat in range(1, 5)} for _ in range(2))
    assert ratio(one, other).difference_shown is False


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_repeats_have_no_interval(repeats: int) -> None:
    found = ratio(dict.fromkeys(range(repeats), 3.0), dict.fromkeys(range(repeats), 2.0))
    assert found == Ratio(pytest.approx(1.5))  # type: ignore[arg-type]
    assert found.difference_shown is None


def test_without_a_common_repeat_medians_are_compared() -> None:
    assert ratio({1: 3.0}, {2: 2.0, 3: 2.0}) == Ratio(1.5)


class TestConclusion:
    """The answer in one sentence."""

    def test_a_shown_difference_names_both_intervals(self) -> None:
        first = Candidate("fsdp8", {1: 2.0, 2: 2.02, 3: 1.98}, 100)
        second = Candidate("tp8", {1: 1.5, 2: 1.51, 3: 1.49}, 133)
        third = Candidate("pp8", {1: 1.0, 2: 1.01, 3: 1.0}, 200)
        best, said = conclude([first, second, third], "fsdp8")
        assert best == "pp8"
        assert said.startswith("pp8 is fastest: 1.99x (95% interval 1.95-2.02) the")
        assert "the speed of the baseline fsdp8; 1 s a step, 200 tokens/s; 1.50x (95% interval" in said
        assert said.endswith(") the speed of the next, tp8")

    def test_where_no_difference_is_shown_it_says_so(self) -> None:
        first = Candidate("fsdp8", {1: 2.0, 2: 2.1, 3: 1.9}, 100)
        second = Candidate("tp8", {1: 1.9, 2: 2.0, 3: 2.1}, 100)
        best, said = conclude([first, second], "fsdp8")
        assert best == "fsdp8"
        assert said.endswith("; no difference shown between fsdp8 and tp8")

    def test_one_repeat_claims_no_certainty(self) -> None:
        pair = [Candidate("fsdp8", {1: 2.0}, 100), Candidate("tp8", {1: 1.0}, 200)]
        assert conclude(pair, "fsdp8") == (
            "tp8",
            "tp8 is fastest: 2.00x the speed of the baseline fsdp8; 1 s a step, 200 tokens/s; "
            "one repeat, so no interval says whether that is more than chance",
        )

    def test_without_candidates_none_is_best(self) -> None:
        assert conclude([], None) == (None, "no layout ran to its end, so there is nothing to compare")
        assert conclude([], "fsdp8")[0] is None
        assert conclude([Candidate("fsdp8", {1: 2.0}, 100)], "fsdp8")[1].startswith("fsdp8 is the only layout")
