"""Two means that were not measured in the same blocks, and intervals of what is made of them.

**Welch.** The difference of two means, their spreads not taken to be equal (Welch 1947)::

    t = (m_B − m_A) / √(v_A + v_B)  with  v = s² / n
    degrees of freedom = (v_A + v_B)² / (v_A² / (n_A − 1) + v_B² / (n_B − 1))

Values are blocks, or, where a side has several allocations, their means: each allocation counts
once, as in ``harness.stats``. The degrees of freedom are Satterthwaite's (1946), which hold for
any sum of independent means.

**A ratio of two throughputs** that no block pairs, such as a speedup whose base was measured in
jobs of its own, is the difference of their mean logarithms, exponentiated. What differs between
the jobs does not cancel there: it scatters both sides, and where all of one side had another luck
than all of the other it is in the ratio, where no test can tell it from scaling.

In simulations of 10,000 sweeps a figure, with a luck of an allocation five times the noise of a
launch, 95 % intervals of a speedup with its base apart cover, in %:

================================  =====  =====  =====
allocations, point + base         3 + 3  5 + 5  5 + 3
================================  =====  =====  =====
luck alike                         96.4   95.5   95.3
the point's luck three times       94.8   94.9   95.2
the base's luck three times        94.9   95.3   93.6
================================  =====  =====  =====
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.errors import AnalysisError
from harness.stats import LEVEL, BlockKey, Interval, mean_interval, require_scipy

Values = Mapping[BlockKey, float]
#: ``exp`` of more is no number.
_MAX_LOG = 709.0


@dataclass(frozen=True)
class Difference:
    """Mean of b − mean of a; ``error`` and ``freedom`` are None where a side has one value."""

    interval: Interval
    error: float | None  # standard error
    freedom: float | None


def welch(a: Values, b: Values, level: float = LEVEL) -> Difference:
    """Return the difference of two means in the values' unit, allocations being the outer level.

    Raises AnalysisError where a side has no values.
    """
    estimate = mean_interval(b, level).estimate - mean_interval(a, level).estimate
    groups = [np.array(outer(one)) for one in (a, b)]
    method = "Welch's t, " + " against ".join(map(counted, (a, b)))
    n = min(group.size for group in groups)
    if n < 2:
        return Difference(Interval(estimate, None, None, level, n, method), None, None)
    variances = [float(group.var(ddof=1)) / group.size for group in groups]
    error = math.sqrt(sum(variances))
    freedom = satterthwaite(variances, [group.size - 1 for group in groups])
    half = -quantile((1 - level) / 2, freedom) * error
    ends = (estimate - half, estimate + half)
    return Difference(Interval(estimate, *ends, level, n, method), error, freedom)


def log_ratio_interval(
    point: Mapping[BlockKey, float], base: Mapping[BlockKey, float], level: float = LEVEL
) -> Interval:
    """Return the interval of geometric mean of ``point`` / geometric mean of ``base``, unpaired.

    ``point`` and ``base`` map blocks to positive values of one unit. Raises AnalysisError without
    values, or where one is not positive and finite.
    """
    found = welch(_logs(base), _logs(point), level).interval
    low = None if found.low is None else exp(found.low)
    high = None if found.high is None else exp(found.high)
    method = "Welch's t, " + " against the base's ".join(map(counted, (point, base)))
    return Interval(exp(found.estimate), low, high, level, found.n, method)


def outer(values: Values) -> list[float]:
    """Return what counts as one value each: blocks of one allocation, means of several."""
    by_allocation: dict[str, list[float]] = {}
    for (allocation, _), value in values.items():
        by_allocation.setdefault(allocation, []).append(value)
    if len(by_allocation) == 1:
        # Sorted, so that the order in which records are read cannot change the last digit.
        return sorted(next(iter(by_allocation.values())))
    return [float(np.mean(by_allocation[key])) for key in sorted(by_allocation)]


def counted(values: Values) -> str:
    """Say what the values are: ``5 allocations``, ``3 blocks of one allocation``."""
    allocations = len({allocation for allocation, _ in values})
    if allocations > 1:
        return f"{allocations} allocations"
    return "one block" if len(values) == 1 else f"{len(values)} blocks of one allocation"


def satterthwaite(variances: Sequence[float], freedoms: Sequence[int]) -> float:
    """Return the degrees of freedom of a sum of means with these variances of their own.

    Of no spread at all, the pooled ones.
    """
    total = sum(variances)
    if total == 0.0:
        return float(sum(freedoms))
    # As shares, so that squares of small variances do not become zero.
    shares = [variance / total for variance in variances]
    return 1.0 / sum(s * s / freedom for s, freedom in zip(shares, freedoms, strict=True))


def quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t; unlike ``stats.t_quantile`` of a broken freedom."""
    require_scipy("an interval")
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def log(value: float) -> float:
    """Return ln of a value of which a ratio is made; AnalysisError where that cannot be."""
    if not (math.isfinite(value) and value > 0):
        raise AnalysisError(f"{value} is not a positive, finite number, so it has no ratio")
    return math.log(value)


def exp(value: float) -> float:
    """``exp`` that overflows to infinity."""
    return math.exp(value) if value < _MAX_LOG else math.inf


def _logs(values: Mapping[BlockKey, float]) -> dict[BlockKey, float]:
    return {key: log(value) for key, value in values.items()}
