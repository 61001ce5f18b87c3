"""Whether the window's pace was one pace, and which steps stand out of it.

**Drift.** The window of the slowest rank (the longest sum of steps) is cut into up to ``SEGMENTS``
equal segments of ``MIN_SEGMENT_STEPS`` steps or more. The means of the segments are tested for a
trend with Mann and Kendall's S, which asks of every pair of segments whether the later one is
slower; its p-value is two-sided and exact. The size of the trend is Theil and Sen's slope (the
median of the slopes of all pairs), as the change from the window's start to its end, relative to
the median segment. A window drifts where ``p < P_DRIFT`` and ``|change| > CHANGE_DRIFT``: a trend
that is beyond doubt and yet small is no fault of a window. Below ``MIN_SEGMENTS`` segments (40
steps) nothing is tested, and nothing is said to drift.

Neither number follows one segment that stalls, so an outlier is no drift; nor is a pace that comes
and goes. Both can be seen as outliers, or in the raw steps.

Simulated windows (4,000 each; seeds in the tests), in % of windows said to drift:

====================================  ========  =========  ===========
noise of the steps, 5 %               50 steps  200 steps  1,000 steps
====================================  ========  =========  ===========
nothing planted: white                     0.7        1.0          0.1
nothing planted: AR(1), ρ = 0.5            1.3        1.3          0.6
nothing planted: AR(1), ρ = 0.9             13        7.7          1.6
a drift of 5 % planted: white               15         81          100
a drift of 5 % planted: AR(1), ρ=0.5       7.8         35           97
====================================  ========  =========  ===========

So a short window finds only large drifts, and noise that lasts as long as a segment is taken for a
drift more often than the test's 1 %: over such a window the pace did change, if not for good. The
cure for both is a longer window.

**Outliers.** Steps longer than ``median + OUTLIER_SPREADS · spread`` of their own rank, where the
spread is 1.4826 · MAD (a normal distribution's standard deviation), but at least
``LEAST_SPREAD`` of the median: a clock or a pace without noise has a MAD of 0, and what is within
5 % of a median step is no outlier. They are counted over all ranks, and none is left out of
anything. Of normal noise one step in 3.5 million is one; of noise with a long tail more, as there
should be.

**On a GPU** a window's stamps are the pace of queueing, not of computing: a rank runs ahead until
the device's queue is full (or until an all-reduce makes it wait), and from then on every step is
queued when one has been computed. Means over segments of many steps are then the device's own pace.
The first segment may be faster than the others while the queue fills; by itself it moves neither S
nor the slope enough to be a drift. An outlier is a step at whose queueing the host stood still,
which the device may not have noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from harness.record import Steadiness

SEGMENTS = 20
MIN_SEGMENTS = 8  # below it even the clearest trend is not far from chance
MIN_SEGMENT_STEPS = 5
P_DRIFT = 0.01
CHANGE_DRIFT = 0.02
OUTLIER_SPREADS = 5.0
LEAST_SPREAD = 0.01  # of a median step
_MAD_TO_SIGMA = 1.4826

Seconds = NDArray[np.float64]


def judge(step_s: Sequence[Seconds]) -> Steadiness | None:
    """Return what the steps of a window, (steps,) of each rank, say; None of no steps at all."""
    ranks = [np.asarray(each, dtype=np.float64) for each in step_s]
    if not ranks or any(each.size == 0 for each in ranks):
        return None
    means = segment_means(max(ranks, key=lambda each: float(each.sum())))
    change = p_value = None
    if means.size >= MIN_SEGMENTS:
        change, p_value = relative_change(means), trend_p_value(means)
    counts, excess_s = zip(*(_outliers(each) for each in ranks), strict=True)
    return Steadiness(
        segments=means.size,
        change=change,
        p_value=p_value,
        drifting=_drifts(change, p_value),
        outliers=sum(counts),
        outlier_time_share=sum(excess_s) / sum(float(each.sum()) for each in ranks),
    )


def segment_means(step_s: Seconds) -> Seconds:
    """Return the mean of each segment; lengths differ by a step at most."""
    count = max(1, min(SEGMENTS, step_s.size // MIN_SEGMENT_STEPS))
    edges = np.linspace(0, step_s.size, count + 1).astype(np.int64)
    sums: Seconds = np.add.reduceat(step_s, edges[:-1])
    return sums / np.diff(edges)


def trend_p_value(values: Seconds) -> float:
    """Return Mann and Kendall's two-sided p of no trend in ``values``, (n,), n ≤ 170.

    Exact: of n! equally likely orders, the share with an ``|S|`` as large. Equal values count as no
    evidence, which keeps p on the safe side. Kendall, Rank Correlation Methods (1970), chapter 5.
    """
    later, earlier = np.tril_indices(values.size, -1)
    found = abs(int(np.sign(values[later] - values[earlier]).sum()))
    chances = _inversion_chances(values.size)
    possible = later.size - 2 * np.arange(chances.size)  # S of 0, 1, 2, … inversions
    return min(1.0, float(chances[np.abs(possible) >= found].sum()))


def relative_change(values: Seconds) -> float:
    """Return Theil and Sen's slope over the whole of ``values``, relative to their median."""
    later, earlier = np.tril_indices(values.size, -1)
    slope = float(np.median((values[later] - values[earlier]) / (later - earlier)))
    middle = float(np.median(values))
    return slope * values.size / middle if middle > 0 else 0.0


@lru_cache(maxsize=32)
def _inversion_chances(n: int) -> NDArray[np.float64]:
    """Return the chance of 0, 1, … n(n−1)/2 inversions in a random order of n values."""
    chances = np.ones(1)
    for size in range(2, n + 1):  # the size-th value may come before 0 … size − 1 others
        chances = np.convolve(chances, np.full(size, 1.0 / size))
    return chances


def _drifts(change: float | None, p_value: float | None) -> bool:
    if change is None or p_value is None:
        return False
    return p_value < P_DRIFT and abs(change) > CHANGE_DRIFT


def _outliers(step_s: Seconds) -> tuple[int, float]:
    """Return the number of a rank's outliers, and their seconds beyond a median step."""
    median = float(np.median(step_s))
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(step_s - median)))
    limit = median + OUTLIER_SPREADS * max(spread, LEAST_SPREAD * median)
    above = step_s[step_s > limit]
    return int(above.size), float((above - median).sum())
