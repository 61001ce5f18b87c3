from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import t as student_t
from scipy.stats import wilcoxon

from harness import stats
from harness.errors import AnalysisError
from harness.stats import (
    geometric_interval,
    line_fit,
    log_mean_interval,
    log_signed_rank_interval,
    mean_interval,
    paired_log_ratios,
    signed_rank_interval,
)

Sample = NDArray[np.float64]

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


SWEEPS = 20_000


def log_ratios(blocks: int, skewed: bool) -> Sample:
    """Paired log-ratios about 0.5 of many sweeps, (SWEEPS, blocks).

    Blocks differ five times as much as launches do. Skewed noise (skewness 1) is the point's alone:
    that of two like launches would cancel.
    """
    random = np.random.default_rng(blocks)
    block = random.normal(0, 0.1, (SWEEPS, blocks))
    if skewed:
        point = 0.02 * (random.gamma(4, 1, (SWEEPS, blocks)) - 4) / 2
        return (0.5 + block + point) - block
    point, base = random.normal(0, 0.02, (2, SWEEPS, blocks))
    return (0.5 + block + point) - (block + base)


def student(x: Sample) -> tuple[Sample, Sample]:
    """Ends of Student's intervals of all rows; the first rows' are those of ``mean_interval``."""
    half = student_t.ppf(0.975, x.shape[1] - 1) * x.std(axis=1, ddof=1) / math.sqrt(x.shape[1])
    low, high = x.mean(axis=1) - half, x.mean(axis=1) + half
    for row in range(5):
        found = mean_interval(blocks(*x[row]))
        assert (found.low, found.high) == (pytest.approx(low[row]), pytest.approx(high[row]))
    return low, high


def covered(ends: tuple[Sample, Sample], value: float) -> float:
    return float(np.mean((ends[0] <= value) & (value <= ends[1])))


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_95_percent_intervals_cover_95_percent(n: int, skewed: bool) -> None:
    found = covered(student(log_ratios(n, skewed)), 0.5)
    assert 0.93 <= found <= 0.97
    assert skewed or found == pytest.approx(0.95, abs=0.006)


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("n", [6, 10])
def test_signed_rank_intervals_cover_what_they_achieve(n: int, skewed: bool) -> None:
    sample = log_ratios(n, skewed)[:4000]
    found = [signed_rank_interval(row) for row in sample]
    hits = covered((np.array([i.low for i in found]), np.array([i.high for i in found])), 0.5)
    assert 0.93 <= hits <= 0.975
    assert skewed or hits == pytest.approx(found[0].level, abs=0.01)


@pytest.mark.parametrize(
    ("max_blocks", "target", "overall", "at_five", "later"),
    [(10, 0.8, 0.936, 0.806, 0.968), (10, 1.5, 0.949, 0.936, 0.999), (20, 0.5, 0.922, 0.61, 0.936)],
)
def test_what_the_sequential_rule_covers(
    max_blocks: int, target: float, overall: float, at_five: float, later: float
) -> None:
    """``target`` is in units of the noise of one block; the loss is with those that stop early."""
    x = np.random.default_rng(max_blocks).normal(size=(40_000, max_blocks))
    stopped = np.full(len(x), max_blocks)
    hit = np.zeros(len(x), dtype=bool)
    for n in range(max_blocks, 4, -1):
        low, high = student(x[:, :n])
        narrow = (high - low) / 2 <= target if n < max_blocks else np.ones(len(x), dtype=bool)
        stopped[narrow], hit[narrow] = n, ((low <= 0) & (high >= 0))[narrow]
    assert hit.mean() == pytest.approx(overall, abs=0.005)
    assert hit[stopped == 5].mean() == pytest.approx(at_five, abs=0.03)
    assert hit[stopped > 5].mean() == pytest.approx(later, abs=0.01)


def test_a_sequential_interval_says_so_and_no_interval_does_not() -> None:
    assert mean_interval(blocks(1.0, 2.0)).sequential().method == (
        "t, 2 blocks of one allocation, sequential"
    )
    assert mean_interval(blocks(1.0)).sequential() == mean_interval(blocks(1.0))


def test_the_signed_rank_interval_by_hand() -> None:
    # Of six values P(W = 0) = 1/64: from the least to the greatest, at 1 - 2/64.
    found = signed_rank_interval([1.0, 2.0, 3.0, 4.0, 5.0, 9.0])
    assert (found.low, found.high, found.level) == (1.0, 9.0, 0.96875)
    assert found.estimate == 3.5  # median of the 21 Walsh averages
    assert (found.n, found.method) == (6, "signed-rank, 6 blocks of one allocation")
    # Of eight: P(W <= 3) = 5/256 <= 0.025 < P(W <= 4), so the fourth least Walsh average.
    found = signed_rank_interval(np.arange(8.0))
    assert (found.low, found.high) == (1.0, 6.0)
    assert found.level == pytest.approx(1 - 10 / 256)


def test_five_blocks_are_too_few_for_the_signed_rank_interval() -> None:
    assert signed_rank_interval(np.arange(5.0)) is None
    assert signed_rank_interval(np.arange(5.0), 0.9).level == 0.9375
    assert signed_rank_interval(np.arange(7.0), 0.99) is None
    assert signed_rank_interval(np.arange(8.0), 0.99).level == 1 - 2 / 256


@pytest.mark.parametrize("n", [6, 9, 20])
def test_the_signed_rank_interval_is_what_the_test_does_not_reject(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n)
    found = signed_rank_interval(x)
    for end, inwards in ((found.low, 1e-9), (found.high, -1e-9)):
        assert wilcoxon(x - (end + inwards), method="exact").pvalue > 0.05
        assert wilcoxon(x - (end - inwards), method="exact").pvalue <= 0.05


def test_the_signed_rank_interval_of_ratios_is_for_one_allocation() -> None:
    logs = blocks(*np.log([1.0, 1.1, 1.2, 1.3, 1.4, 1.5]))
    found = log_signed_rank_interval(logs)
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(1.5))
    assert log_signed_rank_interval(logs | blocks(0.1, allocation="slurm:2")) is None
    assert log_signed_rank_interval({}) is None


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
