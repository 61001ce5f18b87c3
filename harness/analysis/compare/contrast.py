"""How much B differs from A, and whether it really does. Pure: numbers by block in, numbers out.

**Paired.** Where both were measured in the same blocks, each block gives one difference, and what
slows a whole block down cancels. Of n differences (of logarithms, for ratios) with mean d and
standard deviation s::

    t = d · √n / s,  n − 1 degrees of freedom

**Welch.** Otherwise the two means are compared, their spreads not taken to be equal (Welch 1947)::

    t = (m_B − m_A) / √(v_A + v_B)  with  v = s² / n
    degrees of freedom = (v_A + v_B)² / (v_A² / (n_A − 1) + v_B² / (n_B − 1))

Values are blocks, or, where a side has several allocations, their means: each allocation counts
once, as in ``harness.stats``. p is two-sided. The interval is the one that belongs to the test: of
a single comparison it contains "no difference" exactly where p > 1 − level.

**Holm.** Of m comparisons ordered by p the i-th smallest is multiplied by m − i + 1, and never
becomes less than the one before it (Holm 1979). The chance that any equal pair is called different
then stays below 1 − level, whatever the comparisons have in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from harness.errors import AnalysisError
from harness.stats import (
    LEVEL,
    BlockKey,
    Interval,
    geometric_interval,
    log_signed_rank_interval,
    mean_interval,
    require_scipy,
)

Test = Literal["paired t", "Welch's t"]
Values = Mapping[BlockKey, float]
#: Below it, relative to the values, a spread is what rounding leaves of equal ones.
_ROUNDING = 1e-12
#: ``exp`` of more is no number.
_MAX_LOG = 709.0


@dataclass(frozen=True)
class Contrast:
    """One quantity of both sides. What blocks are too few for is None.

    ``effect`` is B / A (``kind`` ratio) or B − A in the quantity's unit (``difference``). ``a`` and
    ``b`` are each side's own means over its blocks, geometric where the effect is a ratio; of other
    blocks than ``effect`` where some are not in both. ``smallest`` is the half width of the
    interval: of a ratio the relative change (0.03 for 3 %) that would just have been told from
    none; a true difference of that size is found in every second comparison. ``freedom`` are the
    degrees of freedom of the test.
    """

    kind: Literal["ratio", "difference"]
    a: Interval
    b: Interval
    effect: Interval
    test: Test
    blocks: tuple[int, int]  # of A and B, in ``effect``; equal where paired
    unused: tuple[int, int]  # blocks of A and B that have no partner
    p_value: float | None
    smallest: float | None
    freedom: float | None
    check: Interval | None = None  # signed-rank interval of a paired ratio, from six blocks on


def ratio(a: Values, b: Values, *, pairable: bool, level: float = LEVEL) -> Contrast:
    """Compare positive values, such as throughputs, by B / A.

    ``pairable`` says that equal block keys are the same block: both of one sweep. Raises
    AnalysisError without values, or where one is not positive and finite.
    """
    logs_a, logs_b = ({key: _log(value) for key, value in one.items()} for one in (a, b))
    found = _compared(logs_a, logs_b, pairable, level)
    log = found.effect
    low = None if log.low is None else _exp(log.low)
    high = None if log.high is None else _exp(log.high)
    paired = found.test == "paired t"
    differences = {key: logs_b[key] - logs_a[key] for key in logs_a if key in logs_b}
    return replace(
        found,
        kind="ratio",
        a=geometric_interval(a, level),
        b=geometric_interval(b, level),
        effect=replace(log, estimate=_exp(log.estimate), low=low, high=high),
        smallest=None if found.smallest is None else _expm1(found.smallest),
        check=log_signed_rank_interval(differences, level) if paired else None,
    )


def difference(a: Values, b: Values, *, pairable: bool, level: float = LEVEL) -> Contrast:
    """Compare values that may be zero or below, such as a phase's time, by B − A."""
    return _compared(a, b, pairable, level)


def smallest_among(found: Contrast, tests: int, level: float = LEVEL) -> float | None:
    """Return ``smallest`` where a contrast is one of ``tests`` that are corrected by ``holm``.

    What is found at 1 − (1 − level) / tests is found whatever the others show (Bonferroni).
    """
    if found.smallest is None or found.freedom is None:
        return None
    alpha = 1 - level
    wider = _quantile(alpha / tests / 2, found.freedom) / _quantile(alpha / 2, found.freedom)
    if found.kind == "difference":
        return found.smallest * wider
    return _expm1(math.log1p(found.smallest) * wider)


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return each p corrected for how many there are; None stays None and does not count."""
    there = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    greatest = 0.0
    for place, (p, index) in enumerate(there):
        greatest = max(greatest, min(1.0, (len(there) - place) * p))
        corrected[index] = greatest
    return tuple(corrected)


def _compared(a: Values, b: Values, pairable: bool, level: float) -> Contrast:
    if not a or not b:
        raise AnalysisError("nothing to compare: a side has no values")
    common = [key for key in a if key in b] if pairable else []
    # A single common block gives no interval: where each side has more, they are used.
    if len(common) > 1 or (common and min(len(_outer(a)), len(_outer(b))) < 2):
        return _paired(a, b, common, level)
    return _welch(a, b, level)


def _paired(a: Values, b: Values, common: Sequence[BlockKey], level: float) -> Contrast:
    differences = {key: b[key] - a[key] for key in common}
    effect = mean_interval(differences, level)
    values = np.array(_outer(differences))
    p_value = freedom = None
    if values.size > 1:
        size = max(max(abs(a[key]), abs(b[key])) for key in common)
        spread = float(values.std(ddof=1)) / math.sqrt(values.size)
        freedom = float(values.size - 1)
        p_value = _p_value(effect.estimate, spread, freedom, size)
    method = "one common block: no interval" if values.size == 1 else f"paired {effect.method}"
    return Contrast(
        kind="difference",
        a=mean_interval(a, level),
        b=mean_interval(b, level),
        effect=replace(effect, method=method),
        test="paired t",
        blocks=(len(common), len(common)),
        unused=(len(a) - len(common), len(b) - len(common)),
        p_value=p_value,
        smallest=_half(effect),
        freedom=freedom,
    )


def _welch(a: Values, b: Values, level: float) -> Contrast:
    ours, theirs = mean_interval(a, level), mean_interval(b, level)
    groups = [np.array(_outer(one)) for one in (a, b)]
    estimate = theirs.estimate - ours.estimate
    method = "Welch's t, " + " against ".join(map(_counted, (a, b)))
    p_value = freedom = None
    effect = Interval(estimate, None, None, level, min(g.size for g in groups), method)
    if effect.n > 1:
        # Of values that are equal within rounding nothing is left, here and in the paired test.
        size = max(float(np.abs(group).max()) for group in groups)
        variances = [float(group.var(ddof=1)) / group.size for group in groups]
        error = math.sqrt(sum(variances))
        freedom = _freedom(variances, [group.size for group in groups])
        p_value = _p_value(estimate, error, freedom, size)
        half = -_quantile((1 - level) / 2, freedom) * error
        effect = replace(effect, low=estimate - half, high=estimate + half)
    return Contrast(
        kind="difference",
        a=ours,
        b=theirs,
        effect=effect,
        test="Welch's t",
        blocks=(len(a), len(b)),
        unused=(0, 0),
        p_value=p_value,
        smallest=_half(effect),
        freedom=freedom,
    )


def _outer(values: Values) -> list[float]:
    """Return what counts as one value each: blocks of one allocation, means of several."""
    by_allocation: dict[str, list[float]] = {}
    for (allocation, _), value in values.items():
        by_allocation.setdefault(allocation, []).append(value)
    if len(by_allocation) == 1:
        # Sorted, so that the order in which records are read cannot change the last digit.
        return sorted(next(iter(by_allocation.values())))
    return [float(np.mean(by_allocation[key])) for key in sorted(by_allocation)]


def _counted(values: Values) -> str:
    allocations = len({allocation for allocation, _ in values})
    if allocations > 1:
        return f"{allocations} allocations"
    return "one block" if len(values) == 1 else f"{len(values)} blocks of one allocation"


def _freedom(variances: Sequence[float], sizes: Sequence[int]) -> float:
    """Return Welch and Satterthwaite's degrees of freedom; of no spread at all, the pooled ones."""
    total = sum(variances)
    if total == 0.0:
        return float(sum(sizes) - len(sizes))
    # As shares, so that squares of small variances do not become zero.
    shares = [variance / total for variance in variances]
    return 1.0 / sum(s * s / (size - 1) for s, size in zip(shares, sizes, strict=True))


def _p_value(estimate: float, error: float, freedom: float, size: float) -> float:
    """Return the two-sided p of ``estimate``; ``size`` is how large the compared values are."""
    rounding = _ROUNDING * max(size, abs(estimate))
    if error <= rounding:
        return 1.0 if abs(estimate) <= rounding else 0.0
    require_scipy("a test")
    from scipy.special import stdtr

    return min(1.0, 2.0 * float(stdtr(freedom, -abs(estimate) / error)))


def _quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t; unlike ``stats.t_quantile`` of a broken freedom."""
    require_scipy("an interval")
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def _half(interval: Interval) -> float | None:
    if interval.low is None or interval.high is None:
        return None
    return (interval.high - interval.low) / 2


def _log(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise AnalysisError(f"{value} is not a positive, finite number, so it has no ratio")
    return math.log(value)


def _exp(value: float) -> float:
    return math.exp(value) if value < _MAX_LOG else math.inf


def _expm1(value: float) -> float:
    return math.expm1(value) if value < _MAX_LOG else math.inf
