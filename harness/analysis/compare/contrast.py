"""How much B differs from A, and whether it really does. Pure: numbers by block in, numbers out.

**Paired.** Where both were measured in the same blocks, each block gives one difference, and what
slows a whole block down cancels. Of n differences (of logarithms, for ratios) with mean d and
standard deviation s::

    t = d · √n / s,  n − 1 degrees of freedom

**Welch.** Otherwise the two means are compared, their spreads not taken to be equal: see
``harness.analysis.welch``.

Values are blocks, or, where a side has several allocations, their means: each allocation counts
once, as in ``harness.stats``. p is two-sided. The interval is the one that belongs to the test: of
a single comparison it contains "no difference" exactly where p > 1 − level.

**Holm.** Of m comparisons ordered by p the i-th smallest is multiplied by m − i + 1, and never
becomes less than the one before it (Holm 1979). The chance that any equal pair is called different
then stays below 1 − level, whatever the comparisons have in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from harness.analysis.welch import Values, exp, log, outer, quantile, welch
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
#: Below it, relative to the values, a spread is what rounding leaves of equal ones.
_ROUNDING = 1e-12
#: ``expm1`` of more is no number.
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
    logs_a, logs_b = ({key: log(value) for key, value in one.items()} for one in (a, b))
    found = _compared(logs_a, logs_b, pairable, level)
    effect = found.effect
    low = None if effect.low is None else exp(effect.low)
    high = None if effect.high is None else exp(effect.high)
    paired = found.test == "paired t"
    differences = {key: logs_b[key] - logs_a[key] for key in logs_a if key in logs_b}
    return replace(
        found,
        kind="ratio",
        a=geometric_interval(a, level),
        b=geometric_interval(b, level),
        effect=replace(effect, estimate=exp(effect.estimate), low=low, high=high),
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
    wider = quantile(alpha / tests / 2, found.freedom) / quantile(alpha / 2, found.freedom)
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
    if len(common) > 1 or (common and min(len(outer(a)), len(outer(b))) < 2):
        return _paired(a, b, common, level)
    return _welch(a, b, level)


def _paired(a: Values, b: Values, common: Sequence[BlockKey], level: float) -> Contrast:
    differences = {key: b[key] - a[key] for key in common}
    effect = mean_interval(differences, level)
    values = np.array(outer(differences))
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
    found = welch(a, b, level)
    p_value = None
    if found.error is not None and found.freedom is not None:
        # Of values that are equal within rounding nothing is left, here and in the paired test.
        size = max(max(map(abs, outer(one))) for one in (a, b))
        p_value = _p_value(found.interval.estimate, found.error, found.freedom, size)
    return Contrast(
        kind="difference",
        a=mean_interval(a, level),
        b=mean_interval(b, level),
        effect=found.interval,
        test="Welch's t",
        blocks=(len(a), len(b)),
        unused=(0, 0),
        p_value=p_value,
        smallest=_half(found.interval),
        freedom=found.freedom,
    )


def _p_value(estimate: float, error: float, freedom: float, size: float) -> float:
    """Return the two-sided p of ``estimate``; ``size`` is how large the compared values are."""
    rounding = _ROUNDING * max(size, abs(estimate))
    if error <= rounding:
        return 1.0 if abs(estimate) <= rounding else 0.0
    require_scipy("a test")
    from scipy.special import stdtr

    return min(1.0, 2.0 * float(stdtr(freedom, -abs(estimate) / error)))


def _half(interval: Interval) -> float | None:
    if interval.low is None or interval.high is None:
        return None
    return (interval.high - interval.low) / 2


def _expm1(value: float) -> float:
    return math.expm1(value) if value < _MAX_LOG else math.inf
