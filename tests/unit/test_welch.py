"""Two means apart, and sums of means that share allocations: against what is known of both."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from harness.analysis.line import sum_interval
from harness.analysis.welch import counted, log_ratio_interval, outer, satterthwaite, welch
from harness.errors import AnalysisError
from harness.stats import BlockKey, mean_interval

LISTS = st.lists(st.floats(-5, 5), min_size=2, max_size=8)


def blocks(values: list[float], name: str = "a") -> dict[BlockKey, float]:
    """Return values as blocks, each in an allocation of its own."""
    return {(f"slurm:{name}{index}", index): value for index, value in enumerate(values)}


def test_a_difference_is_that_of_scipy() -> None:
    a, b = [5.1, 4.9, 6.0], [7.0, 9.5, 8.1, 8.8, 6.9]
    found = welch(blocks(a), blocks(b, "b"))
    theirs = scipy_stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((theirs.low, theirs.high))
    assert found.interval.method == "Welch's t, 3 allocations against 5 allocations"
    assert found.interval.n == 3


def test_an_allocation_counts_once_and_a_single_one_by_its_blocks() -> None:
    values = {("slurm:1", 0): 1.0, ("slurm:1", 1): 3.0, ("slurm:2", 0): 5.0}
    assert outer(values) == [2.0, 5.0]
    assert counted(values) == "2 allocations"
    alone = {("local:h", 1): 3.0, ("local:h", 0): 1.0}
    assert outer(alone) == [1.0, 3.0]
    assert counted(alone) == "2 blocks of one allocation"


def test_one_value_on_a_side_has_no_interval() -> None:
    found = welch(blocks([1.0]), blocks([2.0, 3.0], "b"))
    assert (found.interval.estimate, found.interval.low) == (1.5, None)
    assert (found.error, found.freedom) == (None, None)


def test_a_ratio_is_of_geometric_means() -> None:
    found = log_ratio_interval(blocks([200.0, 800.0]), blocks([100.0, 100.0, 100.0], "b"))
    assert found.estimate == pytest.approx(4.0)
    # The base does not scatter, so one degree of freedom is left: t = 12.706.
    half = 12.7062 * math.log(2)
    assert found.high == pytest.approx(4.0 * math.exp(half), rel=1e-3)
    assert found.method == "Welch's t, 2 allocations against the base's 3 allocations"


def test_no_ratio_of_what_is_not_positive() -> None:
    with pytest.raises(AnalysisError, match="no ratio"):
        log_ratio_interval(blocks([1.0, 0.0]), blocks([1.0, 1.0], "b"))


def test_degrees_of_freedom_lie_between_the_least_and_the_sum() -> None:
    assert satterthwaite([1.0, 0.0], [4, 2]) == pytest.approx(4.0)
    assert satterthwaite([1.0, 1.0], [4, 4]) == pytest.approx(8.0)
    assert satterthwaite([0.0, 0.0], [4, 2]) == 6.0


@given(LISTS, LISTS)
@settings(deadline=None)
def test_a_sum_of_two_means_apart_is_welch(a: list[float], b: list[float]) -> None:
    mine, theirs = blocks(a), blocks(b, "b")
    whole = welch(mine, theirs).interval
    found = sum_interval(whole.estimate, [(theirs, 1.0), (mine, -1.0)], 0.95)
    assert found.low == pytest.approx(whole.low, abs=1e-9)
    assert found.high == pytest.approx(whole.high, abs=1e-9)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=8))
@settings(deadline=None)
def test_a_sum_of_means_of_the_same_allocations_is_students(
    pairs: list[tuple[float, float]],
) -> None:
    one, other = (blocks([pair[i] for pair in pairs]) for i in (0, 1))
    whole = mean_interval({key: 2 * one[key] - 3 * other[key] for key in one})
    found = sum_interval(whole.estimate, [(one, 2.0), (other, -3.0)], 0.95)
    assert found.low == pytest.approx(whole.low, abs=1e-9)
    assert found.high == pytest.approx(whole.high, abs=1e-9)


def test_a_sum_needs_two_units_of_every_sort() -> None:
    pair = blocks([1.0, 2.0])
    assert sum_interval(0.0, [(pair, 1.0), (blocks([1.0], "b"), 1.0)], 0.95).low is None
    # Of three allocations one has the second part, too: the only one of its sort.
    three = blocks([1.0, 2.0, 4.0])
    both = dict.fromkeys(list(three)[:1], 1.0) | blocks([3.0, 5.0], "b")
    assert sum_interval(0.0, [(three, 1.0), (both, 1.0)], 0.95).low is None


def test_blocks_of_one_allocation_each_are_units_and_no_mixture_is() -> None:
    one = {("slurm:1", k): v for k, v in enumerate((1.0, 2.0, 3.0))}
    two = {("slurm:2", k): v for k, v in enumerate((5.0, 5.0, 8.0))}
    found = sum_interval(0.0, [(one, 1.0), (two, 1.0)], 0.95)
    assert found.method == "line through the means, t, 6 blocks"
    assert found.high == pytest.approx(welch(one, two).interval.high - 4.0)
    assert sum_interval(0.0, [(one, 1.0), (blocks([5.0, 6.0]), 1.0)], 0.95).low is None


def test_shared_allocations_are_no_independent_ones() -> None:
    """What two parts have in common cancels in their difference, and adds up in their sum."""
    random = np.random.default_rng(1)
    luck = random.normal(size=6)
    one, other = blocks(list(luck)), blocks(list(luck + 0.01 * random.normal(size=6)))
    difference = sum_interval(0.0, [(one, 1.0), (other, -1.0)], 0.95)
    total = sum_interval(0.0, [(one, 1.0), (other, 1.0)], 0.95)
    assert difference.high < 0.05 < 1.0 < total.high
