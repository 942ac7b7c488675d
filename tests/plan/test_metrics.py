from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchlayout.plan.measured.metrics import Errors, quantile, ranks, robust_spread, spearman


def test_errors() -> None:
    errors = Errors.of([1.1, 1.6, 3.0, 6.0], [1.0, 2.0, 3.0, 4.0])
    assert errors is not None
    assert errors.rows == 4
    assert errors.median == pytest.approx(0.15)
    assert errors.p90 == pytest.approx(0.2 + 0.7 * 0.3)
    assert errors.mean == pytest.approx(0.2)
    assert (errors.worst, errors.bias) == (pytest.approx(0.5), pytest.approx(0.05))
    assert Errors.of([], []) is None


def test_equal_values_share_their_ranks() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0, 3.0]) == [4.0, 1.0, 4.0, 2.0, 4.0]


def test_spearman() -> None:
    # 1 - 6 x (1 + 1 + 0 + 0) / (4 x 15)
    assert spearman([1.0, 2.0, 3.0, 4.0], [20.0, 10.0, 30.0, 90.0]) == pytest.approx(0.8)
    assert spearman([1.0, 2.0, 3.0], [9.0, 4.0, 1.0]) == pytest.approx(-1)
    assert spearman([1.0, 2.0], [1.0, 2.0]) is None
    assert spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


def test_a_quantile_lies_between_its_neighbours() -> None:
    assert quantile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert quantile([0.0, 10.0], 0.9) == pytest.approx(9.0)
    assert quantile([7.0], 0.9) == 7.0


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_quantiles_and_ranks_agree_with_numpy(values: list[float]) -> None:
    import numpy as np

    assert quantile(values, 0.9) == pytest.approx(float(np.quantile(values, 0.9)), abs=1e-9)
    assert sum(ranks(values)) == pytest.approx(len(values) * (len(values) + 1) / 2)


def test_the_robust_spread_of_a_normal_sample_is_its_deviation() -> None:
    import random

    draws = random.Random(0)
    sample = [draws.gauss(0, 0.05) for _ in range(4000)]
    assert robust_spread([*sample, *[5.0] * 40]) == pytest.approx(0.05, rel=0.06)
