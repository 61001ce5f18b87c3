from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import stats
from harness.errors import AnalysisError
from harness.stats import (
    geometric_interval,
    line_fit,
    log_mean_interval,
    mean_interval,
    paired_log_ratios,
)

A = "local:a"
finite = st.floats(-50, 50)
positive = st.floats(1e-6, 1e9)


def blocks(*values: float, allocation: str = A) -> dict[tuple[str, int], float]:
    return {(allocation, i): v for i, v in enumerate(values)}


def test_the_t_interval_by_hand() -> None:
    # mean 2, s = 1, t(0.975, 2) = 4.30265: half = 4.30265 / sqrt(3) = 2.48414
    found = mean_interval(blocks(1.0, 2.0, 3.0))
    assert found.estimate == 2.0
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-5)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-5)
    assert (found.n, found.level, found.method) == (3, 0.95, "t, 3 blocks of one allocation")


def test_a_ratio_is_a_geometric_mean_with_exponentiated_ends() -> None:
    # log-ratios ln 1, ln 2, ln 4: mean ln 2, s = ln 2, half = ln 2 * 2.484138
    found = log_mean_interval(blocks(0.0, math.log(2), math.log(4)))
    assert found.estimate == pytest.approx(2.0)
    assert found.low == pytest.approx(2 * 2**-2.484138, rel=1e-5)
    assert found.high == pytest.approx(2 * 2**2.484138, rel=1e-5)


def test_pairing_takes_only_blocks_that_have_both() -> None:
    point = {(A, 0): 20.0, (A, 1): 30.0, (A, 2): 99.0}
    base = {(A, 1): 15.0, (A, 0): 5.0, ("b", 2): 1.0}
    assert paired_log_ratios(point, base) == {
        (A, 0): pytest.approx(math.log(4)),
        (A, 1): pytest.approx(math.log(2)),
    }


def test_pairing_cancels_what_slows_a_whole_block() -> None:
    drift = (1.0, 0.5, 2.0)
    point = {(A, i): 180.0 * d for i, d in enumerate(drift)}
    base = {(A, i): 100.0 * d for i, d in enumerate(drift)}
    found = log_mean_interval(paired_log_ratios(point, base))
    assert (found.low, found.high) == (pytest.approx(1.8), pytest.approx(1.8))
    assert geometric_interval(point).relative_half_width > 1


def test_one_block_has_no_interval_and_says_so() -> None:
    found = mean_interval(blocks(7.0))
    assert (found.estimate, found.low, found.high, found.n) == (7.0, None, None, 1)
    assert not found.has_interval
    assert found.relative_half_width is None
    assert found.method == "one block: no interval"


def test_allocations_are_the_outer_level() -> None:
    # Means 1 and 3, whatever the number of blocks: n = 2, s = sqrt 2, t(0.975, 1) = 12.7062
    values = blocks(0.5, 1.5, 1.0, allocation="slurm:1") | blocks(3.0, allocation="slurm:2")
    found = mean_interval(values)
    assert found.estimate == 2.0
    assert found.high == pytest.approx(2 + 12.7062, abs=1e-4)
    assert (found.n, found.method) == (2, "t, 2 allocations")


@pytest.mark.parametrize("n", [2, 3, 5])
def test_95_percent_intervals_cover_95_percent(n: int) -> None:
    random = np.random.default_rng(n)
    draws = random.normal(0.5, 0.03, size=(6000, n))
    hits = 0
    for row in draws:
        found = log_mean_interval(blocks(*row))
        hits += found.low <= math.exp(0.5) <= found.high
    assert 0.93 <= hits / len(draws) <= 0.97


def test_intervals_over_allocations_cover_where_blocks_alone_would_not() -> None:
    """Blocks share the luck of their allocation: pooled they would cover far too little."""
    random = np.random.default_rng(7)
    hits = pooled = 0
    for _ in range(3000):
        luck = random.normal(0, 1, size=4)
        nested = {
            (f"slurm:{a}", b): luck[a] + random.normal(0, 0.2) for a in range(4) for b in range(5)
        }
        found = mean_interval(nested)
        hits += found.low <= 0 <= found.high
        flat = mean_interval(blocks(*nested.values()))
        pooled += flat.low <= 0 <= flat.high
    assert 0.93 <= hits / 3000 <= 0.97
    assert pooled / 3000 < 0.75


def test_relative_half_width_by_hand() -> None:
    # exp(m ± h) around exp(m): sinh(h), whatever m is.
    found = log_mean_interval(blocks(0.61, 0.65, 0.66))
    h = 4.302653 * 0.0264575 / math.sqrt(3)
    assert found.relative_half_width == pytest.approx(math.sinh(h), rel=1e-5)
    assert log_mean_interval(blocks(0.3, 0.3)).relative_half_width == 0.0
    assert log_mean_interval(blocks(0.3)).relative_half_width is None


def test_scaling_an_interval_scales_everything_but_its_relative_width() -> None:
    found = geometric_interval(blocks(1.0, 1.1, 1.2))
    half = found.scaled(0.5)
    assert (half.estimate, half.low, half.high) == (
        found.estimate / 2,
        found.low / 2,
        found.high / 2,
    )
    assert half.relative_half_width == pytest.approx(found.relative_half_width)
    with pytest.raises(ValueError, match="positive"):
        found.scaled(0)


def test_line_fit_by_hand() -> None:
    assert line_fit([1, 2, 4], [1, 1.5, 2.5]) == (pytest.approx(0.5), pytest.approx(0.5))
    with pytest.raises(AnalysisError, match="two different device counts"):
        line_fit([2, 2], [1, 2])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_throughput_that_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(AnalysisError, match="not a positive, finite number"):
        paired_log_ratios({(A, 0): bad}, {(A, 0): 1.0})
    with pytest.raises(AnalysisError, match="not a positive, finite number"):
        geometric_interval(blocks(1.0, bad))


def test_no_values_is_an_error_and_a_level_is_a_probability() -> None:
    with pytest.raises(AnalysisError, match="no values"):
        mean_interval({})
    with pytest.raises(AnalysisError, match="between 0 and 1"):
        mean_interval(blocks(1.0, 2.0), level=95)


@settings(deadline=None)
@given(st.lists(finite, min_size=2, max_size=8), st.randoms())
def test_the_order_of_records_changes_nothing(values: list[float], random) -> None:
    items = list(blocks(*values).items())
    expected = mean_interval(dict(items))
    random.shuffle(items)
    assert mean_interval(dict(items)) == expected


@settings(deadline=None)
@given(st.lists(positive, min_size=1, max_size=6))
def test_a_point_against_itself_is_exactly_one(values: list[float]) -> None:
    found = log_mean_interval(paired_log_ratios(blocks(*values), blocks(*values)))
    assert found.estimate == 1.0
    assert (found.low, found.high) == ((1.0, 1.0) if len(values) > 1 else (None, None))


@settings(deadline=None)
@given(st.lists(finite, min_size=2, max_size=8))
def test_an_interval_holds_its_estimate_and_widens_with_the_level(values: list[float]) -> None:
    narrow, wide = mean_interval(blocks(*values), 0.8), mean_interval(blocks(*values), 0.99)
    assert wide.low <= narrow.low <= narrow.estimate <= narrow.high <= wide.high


def test_importing_stats_does_not_import_scipy() -> None:
    import subprocess
    import sys

    code = f"import {stats.__name__}, sys; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
