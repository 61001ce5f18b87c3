"""Intervals and paired ratios. Pure: numbers in, numbers out.

The unit of repetition is the **block**: one launch of base and points in one allocation.
Base and point are paired inside a block, so what slows a whole block down cancels. Ratios of times
are multiplicative, so they are averaged as logarithms::

    r_b = ln(throughput of the point in block b / throughput of the base in block b)

Blocks of one allocation share its nodes and its neighbours, so they are no independent draws from
all allocations. Where there are several allocations, each counts once, by the mean of its blocks;
where there is one, the interval is over its blocks, holds for that allocation only, and says so.

With n values of mean m and standard deviation s (n − 1 in the denominator) the interval of the mean
is Student's ``m ± t(1 − α/2, n − 1) · s / √n``; for ratios m and both ends are exponentiated. Three
to five blocks are usual, and there the percentile bootstrap is far too narrow (95 % intervals of 3
values cover 74 %, of 5 values 84 %): it is not offered.

**Signed-rank check.** From six blocks of one allocation on there is, beside it, an interval that
knows no normal distribution: Wilcoxon's signed-rank interval between order statistics of the Walsh
averages ``(r_i + r_j) / 2, i ≤ j``, whose median is the Hodges-Lehmann estimate (Hollander, Wolfe &
Chicken, Nonparametric Statistical Methods, 2014, section 3.4). It asks for a symmetric
distribution, and then is of the same quantity as Student's: the mean. Differences of logarithms of
two launches alike are symmetric whatever either's distribution. Its level comes in steps and is the
one achieved, at least the one asked for: 96.9 % of six blocks (where it reaches from the least to
the greatest), 95.1 % of ten. Of five it would be 93.8 % at best, so there is none. Student's stays
the one that is reported and that ``ci_target`` looks at: it is there from two blocks on and does
not change its kind at the sixth. Where the two disagree, a launch stalled or blocks drifted: look
at the launches. The interval of the median (order statistics) is not offered: it is of another
quantity.

**What 95 % intervals cover**, in simulations in % of 40,000 sweeps a figure:

==========================  =====  =====  =====  ======
paired log-ratios           n = 3  n = 5  n = 6  n = 10
==========================  =====  =====  =====  ======
Student, normal noise        94.8   95.0   95.0    95.1
Student, skewed noise        93.6   93.2   93.1    93.7
signed-rank, normal noise       –      –   96.9    95.1
signed-rank, skewed noise       –      –   95.9    94.0
==========================  =====  =====  =====  ======

The blocks' own effect is five times the noise of a launch, and cancels; the skewed noise has a
skewness of 1 and is the point's alone, where that of two like launches would cancel, too.
Over four allocations of five blocks, with luck of an allocation five times the noise of a block:
94.9 %; the same twenty blocks taken as independent: 55 %.

**Sequential.** ``ci_target`` looks after five blocks and after each further one, up to
``max_blocks``, and stops at the first interval that is narrow enough. An interval that is narrow by
luck ends a sweep, so all intervals together cover less than they say: 93.4 to 95.0 % with
``max_blocks: 10``, 92.2 to 95.0 % with 20, the less the farther the target is below the noise of
one block. Neither is the loss spread evenly: with a target of 0.8 of that noise, those that stop at
five blocks cover 81 %, those that go on 97 %. All blocks of a sweep with such a rule are
marked in their records, and intervals that rest on them are marked ``sequential``. For the full
95 % give ``blocks`` and no target.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import AnalysisError, MissingDependencyError

LEVEL = 0.95
#: What is said once where intervals are marked ``sequential``.
SEQUENTIAL_NOTE = (
    "sequential: measuring ended when the interval was narrow, which makes it somewhat too narrow"
)

BlockKey = tuple[str, int]  # (allocation, repeat)
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval, in the unit of what was estimated.

    ``low`` and ``high`` are None where there is no interval (one value); ``n`` is the number of
    values it rests on: blocks, or allocations where there are several. ``method`` is for readers.
    """

    estimate: float
    low: float | None
    high: float | None
    level: float
    n: int
    method: str

    @property
    def has_interval(self) -> bool:
        """Say whether there are two ends."""
        return self.low is not None and self.high is not None

    @property
    def relative_half_width(self) -> float | None:
        """Return (high − low) / (2 · |estimate|), without a unit; None without an interval."""
        if self.low is None or self.high is None:
            return None
        if self.estimate == 0.0:
            return 0.0 if self.low == self.high else math.inf
        return (self.high - self.low) / (2.0 * abs(self.estimate))

    def scaled(self, factor: float) -> Interval:
        """Return the interval of ``factor`` times the quantity; ``factor`` must be positive."""
        if not factor > 0:
            raise ValueError(f"factor must be positive, got {factor}")
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return replace(self, estimate=self.estimate * factor, low=low, high=high)

    def sequential(self) -> Interval:
        """Return it marked as one whose number of blocks followed from how wide it was."""
        return replace(self, method=f"{self.method}, sequential") if self.has_interval else self


def paired_log_ratios(point: Mapping[Key, float], base: Mapping[Key, float]) -> dict[Key, float]:
    """Return ln(point / base) of every block that has both, in the order of ``point``.

    ``point`` and ``base`` map a block's key to a positive value of one unit. Blocks that lack
    either are left out; the caller sees which by the keys. Raises AnalysisError on a value that is
    not positive and finite.
    """
    return {
        key: _log(value, "point", key) - _log(base[key], "base", key)
        for key, value in point.items()
        if key in base
    }


def log_mean_interval(logs: Mapping[BlockKey, float], level: float = LEVEL) -> Interval:
    """Return the interval of the geometric mean of what ``logs`` are the logarithms of.

    With the logarithms of paired ratios this is the speedup. Raises AnalysisError without values.
    """
    mean = mean_interval(logs, level)
    low = None if mean.low is None else math.exp(mean.low)
    high = None if mean.high is None else _exp(mean.high)
    return Interval(math.exp(mean.estimate), low, high, level, mean.n, mean.method)


def geometric_interval(values: Mapping[BlockKey, float], level: float = LEVEL) -> Interval:
    """Return the interval of the geometric mean of positive values, e.g. of throughputs."""
    logs = {key: _log(value, "value", key) for key, value in values.items()}
    return log_mean_interval(logs, level)


def mean_interval(values: Mapping[BlockKey, float], level: float = LEVEL) -> Interval:
    """Return Student's interval of the mean, allocations being the outer level.

    ``values`` maps (allocation, repeat) to a value in any unit. One value has no interval. Raises
    AnalysisError without values.
    """
    if not values:
        raise AnalysisError("no values to average: no block has a measurement of this point")
    by_allocation: dict[str, list[float]] = {}
    for (allocation, _), value in values.items():
        by_allocation.setdefault(allocation, []).append(value)
    if len(by_allocation) > 1:
        means = [float(np.mean(by_allocation[key])) for key in sorted(by_allocation)]
        return _student(means, level, f"t, {len(means)} allocations")
    (blocks,) = by_allocation.values()
    if len(blocks) == 1:
        return Interval(float(blocks[0]), None, None, level, 1, "one block: no interval")
    # Sorted, so that the order in which records are read cannot change the last digit.
    return _student(sorted(blocks), level, f"t, {len(blocks)} blocks of one allocation")


def signed_rank_interval(values: ArrayLike, level: float = LEVEL) -> Interval | None:
    """Return Wilcoxon's signed-rank interval of the centre of ``values``, (n,), in their unit.

    The centre of a symmetric distribution is its mean; the estimate is Hodges and Lehmann's.
    ``level`` of the result is the one achieved, at least the one asked for; None where n is too
    small for it (below 6 for 95 %).
    """
    x = _finite(values)
    below = np.cumsum(_signed_rank_chances(x.size))  # P(W ≤ 0), P(W ≤ 1), …
    k = int(np.searchsorted(below, _alpha(level) / 2, side="right")) - 1
    if k < 0:
        return None
    first, second = np.triu_indices(x.size)
    walsh = np.sort((x[first] + x[second]) / 2)
    return Interval(
        estimate=float(np.median(walsh)),
        low=float(walsh[k]),
        high=float(walsh[walsh.size - 1 - k]),
        level=1 - 2 * float(below[k]),
        n=int(x.size),
        method=f"signed-rank, {x.size} blocks of one allocation",
    )


def log_signed_rank_interval(
    logs: Mapping[BlockKey, float], level: float = LEVEL
) -> Interval | None:
    """Return the signed-rank interval of what ``logs`` are the logarithms of.

    It stands beside ``log_mean_interval``; None where there are several allocations, which would
    have to be its values, or too few blocks.
    """
    if len({allocation for allocation, _ in logs}) != 1:
        return None
    found = signed_rank_interval(sorted(logs.values()), level)
    if found is None or found.low is None or found.high is None:
        return None
    low, high = math.exp(found.low), _exp(found.high)
    return replace(found, estimate=math.exp(found.estimate), low=low, high=high)


def line_fit(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Return (slope, intercept) of the least-squares line of ``y`` on ``x``, both of shape (n,).

    Raises AnalysisError where ``x`` has fewer than two distinct values.
    """
    xs, ys = _finite(x), _finite(y)
    if xs.shape != ys.shape:
        raise ValueError(f"x has shape {xs.shape}, y has {ys.shape}")
    if np.unique(xs).size < 2:
        raise AnalysisError("a line needs two different device counts or more")
    centred = xs - xs.mean()
    slope = float(centred @ (ys - ys.mean()) / (centred @ centred))
    return slope, float(ys.mean() - slope * xs.mean())


def t_quantile(probability: float, degrees_of_freedom: int) -> float:
    """Return the quantile of Student's t, e.g. 4.3027 for 0.975 and 2 degrees of freedom."""
    require_scipy("an interval")
    return _t_quantile(probability, degrees_of_freedom)


@lru_cache(maxsize=1024)
def _t_quantile(probability: float, degrees_of_freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, probability))


def require_scipy(what: str) -> None:
    """Raise MissingDependencyError where ``what`` cannot be had, because scipy is not here."""
    try:
        import scipy.special  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs scipy ({error}); install it: pip install 'hvdscale[analysis]'"
        ) from None


@lru_cache(maxsize=256)
def _signed_rank_chances(n: int) -> NDArray[np.float64]:
    """Return the chance of each sum of signed ranks, 0 … n(n+1)/2, where the centre is 0."""
    chances = np.ones(1)
    for rank in range(1, n + 1):  # a rank is in the sum or not, with even chances
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return chances


def _student(values: Sequence[float], level: float, method: str) -> Interval:
    """Student's interval of the mean of two values or more."""
    x = _finite(values)
    mean = float(x.mean())
    sem = float(x.std(ddof=1)) / math.sqrt(x.size)
    half = t_quantile(1 - _alpha(level) / 2, x.size - 1) * sem
    return Interval(mean, mean - half, mean + half, level, int(x.size), method)


def _alpha(level: float) -> float:
    if not 0 < level < 1:
        raise AnalysisError(f"a confidence level is between 0 and 1, got {level}")
    return 1 - level


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1:
        raise ValueError(f"expected one dimension, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise AnalysisError("a value is not finite; a record that holds NaN or infinity is broken")
    return x


def _log(value: float, what: str, key: Hashable) -> float:
    if not (math.isfinite(value) and value > 0):
        raise AnalysisError(f"{what} of block {key}: {value} is not a positive, finite number")
    return math.log(value)


def _exp(value: float) -> float:
    """``exp`` that overflows to infinity: two values far apart have an endless upper end."""
    return math.exp(value) if value < 709 else math.inf
