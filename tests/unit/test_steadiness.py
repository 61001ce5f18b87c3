"""The test of a window's pace, on windows whose pace is known."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.measure.steadiness import (
    judge,
    relative_change,
    segment_means,
    trend_p_value,
)

STEP_S = 1e-2


def windows(count: int, steps: int, rho: float = 0.0, drift: float = 0.0) -> NDArray[np.float64]:
    """Windows of AR(1) noise of 5 % about a pace that changes by ``drift``, (count, steps)."""
    random = np.random.default_rng(steps)
    noise = random.normal(size=(count, steps))
    for step in range(1, steps):
        noise[:, step] = rho * noise[:, step - 1] + math.sqrt(1 - rho**2) * noise[:, step]
    return STEP_S * (np.linspace(1, 1 + drift, steps) + 0.05 * noise)


def drifting(made: NDArray[np.float64]) -> float:
    return float(np.mean([judge([one]).drifting for one in made]))


def test_the_p_value_is_that_of_all_orders() -> None:
    orders = np.array(list(permutations(range(6))), dtype=float)
    scores = np.array([_score(order) for order in orders])
    for order in orders[::37]:
        exact = np.mean(np.abs(scores) >= abs(_score(order)))
        assert trend_p_value(order) == pytest.approx(exact)
    assert trend_p_value(np.arange(20.0)) == pytest.approx(2 / math.factorial(20))


def _score(values: NDArray[np.float64]) -> int:
    return sum(int(np.sign(values[j] - values[i])) for j in range(len(values)) for i in range(j))


def test_the_change_is_the_slope_of_most_pairs_over_the_window() -> None:
    values = np.linspace(1.0, 1.19, 20)
    assert relative_change(values) == pytest.approx(0.2 / 1.095)
    values[7] = 50.0  # a stall
    assert relative_change(values) == pytest.approx(0.2 / 1.105, rel=0.02)
    assert relative_change(np.full(20, 3.0)) == 0.0


def test_segments_hold_every_step_once() -> None:
    steps = np.arange(103.0)
    means = segment_means(steps)
    assert means.size == 20
    assert means[0] == pytest.approx(steps[:5].mean())
    assert means[-1] == pytest.approx(steps[97:].mean())
    assert segment_means(np.arange(50.0)).size == 10  # of five steps each


@pytest.mark.parametrize(("rho", "steps", "most"), [(0.0, 200, 0.02), (0.5, 200, 0.03)])
def test_noise_alone_is_seldom_a_drift(rho: float, steps: int, most: float) -> None:
    assert drifting(windows(1500, steps, rho)) < most


def test_a_small_drift_beyond_doubt_is_none() -> None:
    steady = judge([STEP_S * np.linspace(1, 1.015, 1000)])
    assert steady.p_value < 1e-9
    assert steady.change == pytest.approx(0.015, rel=0.05)
    assert not steady.drifting


@pytest.mark.parametrize("drift", [0.05, -0.05])
def test_a_planted_drift_is_found_and_measured(drift: float) -> None:
    made = windows(200, 1000, 0.5, drift)
    assert drifting(made) > 0.9
    found = np.mean([judge([one]).change for one in made])
    assert found == pytest.approx(drift / (1 + drift / 2), rel=0.1)


def test_the_slowest_rank_is_the_one_that_is_judged() -> None:
    still, drifts = np.full(200, STEP_S), STEP_S * np.linspace(1.01, 1.2, 200)
    assert judge([still, drifts]).drifting
    assert not judge([2 * still, drifts]).drifting


def test_a_window_of_few_steps_is_not_judged() -> None:
    found = judge([STEP_S * np.linspace(1, 2, 39)])
    assert (found.segments, found.p_value, found.change, found.drifting) == (7, None, None, False)
    assert judge([STEP_S * np.linspace(1, 2, 40)]).drifting
    assert judge([np.ones(1)]).segments == 1
    assert judge([]) is None
    assert judge([np.empty(0)]) is None


def test_a_slow_start_or_a_stall_is_no_drift() -> None:
    steps = windows(1, 1000)[0]
    steps[:50] *= 0.5  # a device's queue that fills
    steps[700:703] *= 30
    assert not judge([steps]).drifting


def test_outliers_are_counted_over_all_ranks_with_their_time() -> None:
    ranks = [np.full(100, STEP_S), np.full(100, STEP_S)]
    ranks[0][3] += 5 * STEP_S
    ranks[1][[3, 50]] += STEP_S
    found = judge(ranks)
    assert found.outliers == 3
    assert found.outlier_time_share == pytest.approx(7 / 207)


def test_steps_all_alike_have_outliers_only_well_above_them() -> None:
    """The MAD is 0 here, and everything would be an outlier of it."""
    steps = np.full(100, STEP_S)
    steps[7] *= 1.049
    assert judge([steps]).outliers == 0
    steps[8] *= 1.051
    assert judge([steps]).outliers == 1


def test_outliers_are_against_the_spread_where_that_is_larger() -> None:
    steps = windows(1, 2000)[0]
    steps[100] = STEP_S * 1.2  # 4 spreads of 5 %
    assert judge([steps]).outliers == 0
    steps[100] = STEP_S * 1.4
    assert judge([steps]).outliers == 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=120), st.integers(-10, 10))
def test_the_unit_of_time_changes_no_verdict(steps: list[float], power: int) -> None:
    one, other = judge([np.array(steps)]), judge([2.0**power * np.array(steps)])
    assert (one.segments, one.outliers) == (other.segments, other.outliers)
    assert 0 <= one.outlier_time_share < 1
    assert (one.p_value, one.change) == (other.p_value, other.change)
    if one.p_value is not None:
        assert 0 < one.p_value <= 1
