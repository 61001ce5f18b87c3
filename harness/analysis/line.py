"""The line fitted to S against N, and how well its slope is known.

**Block by block.** A block that has every device count gives a line of its own, and the slope is
the mean of theirs: what slows a block down is in no slope.

**Through the means.** Where no two such blocks are there, as where each placement ran in jobs of
its own, one least-squares line goes through the points' geometric means. Its slope (its intercept
likewise) is a sum Σ w_i S_i whose weights depend on the device counts alone, so by the delta method
(Oehlert 1992), with S_i = exp(d_i)::

    slope − true slope ≈ Σ w_i S_i (d_i − true d_i)

d_i is a mean of log-ratios over allocations, or of log-throughputs less that of the base, where
point and base were measured apart (an error of that base then moves all points together). The
allocations are sorted by what was measured in them: those of one sort are independent draws of one
sum, whose variance their scatter gives, and the sorts' variances add up. Points that share
allocations may so depend on each other in any way. Degrees of freedom are Satterthwaite's. Where a
sort has a single member there is no interval.

The points are not weighted by how well they are known: where a curve is bent, weights would make
another line of it, and the slope would depend on the noise. So the widest interval rules, mostly
the one of the greatest N.

In simulations of 10,000 sweeps a figure (four placements, N = 2, 4, 8, 16, each in allocations of
its own, luck and noise normal in the logarithm) 95 % intervals of the slope cover, in %:

=================================================  =====  =====  ======
allocations a placement                            n = 3  n = 5  n = 10
=================================================  =====  =====  ======
bases beside their points, noise of a launch 2 %    93.9   94.8    95.0
the same, noise 10 %                                93.6   94.6    94.9
base apart, noise 1 %, luck of an allocation 5 %    96.2   95.7    95.2
the same, noise 2 %, luck 10 %                      96.2   95.4    95.1
=================================================  =====  =====  ======
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.analysis.points import Point
from harness.analysis.welch import Values, quantile, satterthwaite
from harness.stats import BlockKey, Interval, line_fit, mean_interval

Line = tuple[Interval, Interval]  # slope and intercept
_LEAST = 3  # device counts: through two points a line is no fit, and says no more than they do
_BARE = "line through the means: no interval"


def fitted_line(
    points: Sequence[Point], base_rates: Mapping[BlockKey, float], level: float
) -> Line | None:
    """Return slope and intercept of S against N; None below three device counts.

    ``base_rates`` are the base's throughputs by block, for points whose S has no pairs.
    """
    shown = [point for point in points if point.speedup]
    if len({point.world_size for point in shown}) < _LEAST:
        return None
    by_block = _block_by_block(shown, level)
    if by_block is None or not by_block[0].has_interval:
        through = _through_means(shown, base_rates, level)
        by_block = through if by_block is None or through[0].has_interval else by_block
    if any(point.sequential for point in shown):
        return by_block[0].sequential(), by_block[1].sequential()
    return by_block


def _block_by_block(shown: Sequence[Point], level: float) -> Line | None:
    """Return the mean of the lines of blocks that have every device count; None without any."""
    counts = {point.world_size for point in shown}
    by_block: dict[BlockKey, list[tuple[int, float]]] = {}
    for point in shown:
        for launch in point.launches:
            if launch.speedup is not None:
                by_block.setdefault(launch.block, []).append((point.world_size, launch.speedup))
    lines = {
        block: line_fit([n for n, _ in pairs], [s for _, s in pairs])
        for block, pairs in by_block.items()
        if {n for n, _ in pairs} == counts
    }
    if not lines:
        return None
    slope, intercept = (
        mean_interval({block: line[i] for block, line in lines.items()}, level) for i in (0, 1)
    )
    return slope, intercept


def _through_means(
    shown: Sequence[Point], base_rates: Mapping[BlockKey, float], level: float
) -> Line:
    counts = np.array([point.world_size for point in shown], dtype=np.float64)
    means = np.array([point.speedup.estimate for point in shown if point.speedup])
    slope, intercept = line_fit(counts, means)
    centred = counts - counts.mean()
    of_slope = centred / float(centred @ centred)
    of_intercept = 1.0 / counts.size - counts.mean() * of_slope
    apart = np.array([point.apart for point in shown])
    parts = [*map(_logs, shown), {key: math.log(rate) for key, rate in base_rates.items()}]
    found = []
    for estimate, weights in ((slope, of_slope), (intercept, of_intercept)):
        factors = weights * means
        every = [*factors.tolist(), -float(factors[apart].sum())]
        kept = [(p, f) for p, f in zip(parts, every, strict=True) if f != 0.0]
        found.append(sum_interval(estimate, kept, level))
    return found[0], found[1]


def _logs(point: Point) -> dict[BlockKey, float]:
    """Return ln of what a point's S is the mean of: ratios, or throughputs where it is apart."""
    found: dict[BlockKey, list[float]] = {}
    for launch in point.launches:
        value = launch.throughput_samples_per_s if point.apart else launch.speedup
        if value is not None:
            found.setdefault(launch.block, []).append(math.log(value))
    return {block: float(np.mean(logs)) for block, logs in found.items()}


def sum_interval(estimate: float, parts: Sequence[tuple[Values, float]], level: float) -> Interval:
    """Return the interval of a sum of factor × mean, each mean over blocks of its own or shared.

    ``parts`` are (values by block, factor); ``estimate`` is what the interval lies around. Every
    part has several allocations, which then are the units, or each has a single one, whose blocks
    are; where neither is so, or a unit is the only one of its sort, there is no interval.
    """
    several = [len({allocation for allocation, _ in values}) > 1 for values, _ in parts]
    units = _units(parts, by_allocation=all(several))
    sorts: dict[frozenset[int], list[float]] = {}
    for shares in units.values():
        sorts.setdefault(frozenset(shares), []).append(sum(shares.values()))
    groups = list(sorts.values())
    alone = any(len(group) == 1 for group in groups)
    if alone or any(several) != all(several):
        return Interval(estimate, None, None, level, len(units), _BARE)
    # A sort's n units give n shares that are added, each with the variance that is between them.
    variances = [len(group) * float(np.var(group, ddof=1)) for group in groups]
    freedom = satterthwaite(variances, [len(group) - 1 for group in groups])
    half = -quantile((1 - level) / 2, freedom) * math.sqrt(sum(variances))
    what = "allocations" if all(several) else "blocks"
    method = f"line through the means, t, {len(units)} {what}"
    return Interval(estimate, estimate - half, estimate + half, level, len(units), method)


def _units(
    parts: Sequence[tuple[Values, float]], *, by_allocation: bool
) -> dict[object, dict[int, float]]:
    """Return each unit's share in the sum, by the part that it is of."""
    units: dict[object, dict[int, float]] = {}
    for index, (values, factor) in enumerate(parts):
        found: dict[object, list[float]] = {}
        for block, value in values.items():
            found.setdefault(block[0] if by_allocation else block, []).append(value)
        for unit, of_unit in found.items():
            units.setdefault(unit, {})[index] = factor * float(np.mean(of_unit)) / len(found)
    return units
