"""What laws are fitted to: each point's mean log throughput, and how these means may err.

A law has a parameter for the pace of one device, so what slows down all launches of a block alike
changes that parameter and no other. Where two blocks or more have every point, the block is
therefore the unit (the allocation where there are several, as in ``harness.stats``): the means'
joint scatter is that of the blocks, and a drift between blocks cannot look like scaling. Where no
two blocks have all (each placement in an allocation of its own), throughput is taken relative to
the base of its own block, if every launch has one, and the points' means err independently, by
the scatter of launches, pooled over the points. Where not every launch has one (a base in jobs of
its own), throughput is taken as it is, and a note says so: what differs between jobs is scatter
then, and where it goes with the placement it is in the law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri

from harness.analysis.points import Launch, Point
from harness.stats import BlockKey

Array = NDArray[np.float64]
#: How many plausible sets of parameters an interval rests on.
DRAWS = 2000
_SEED = 20_220
#: Of two blocks a deviation may be any multiple of what was seen; beyond e^±20 nothing is told.
_LARGEST = 20.0


@dataclass(frozen=True, eq=False)
class Sample:
    """k points: device counts, mean log throughputs, and the means' possible errors.

    ``errors`` has the shape (r, k): the means' covariance is ``errors.T @ errors``, estimated with
    ``freedom`` degrees of freedom; None of them (0) where nothing tells the scatter.
    """

    counts: Array  # (k,), devices
    logs: Array  # (k,), ln of samples/s
    errors: Array  # (r, k)
    freedom: int
    units: int  # blocks, or allocations
    method: str  # as in Interval
    note: str | None  # what was left out of it, or had to be assumed

    def draws(self, count: int) -> Array:
        """Return ``count`` plausible vectors of means, (count, k): Student's t around ``logs``.

        The same data give the same draws. Without degrees of freedom all are ``logs``.
        """
        if self.freedom == 0:
            return np.repeat(self.logs[None, :], count, axis=0)
        directions = _directions(self.errors)
        even = spread_evenly(count, len(directions) + 1)
        chi2 = 2 * gammaincinv(self.freedom / 2, even[:, -1])
        scale = np.sqrt(self.freedom / chi2)[:, None]
        normal = ndtri(even[:, :-1])
        found: Array = self.logs + np.clip(scale * (normal @ directions), -_LARGEST, _LARGEST)
        return found


def _directions(errors: Array) -> Array:
    """Return the same covariance by as few rows as it takes, the largest first.

    Their signs are fixed: what a library makes of them must not change a draw.
    """
    _, sizes, rows = np.linalg.svd(errors, full_matrices=False)
    found: Array = (sizes[:, None] * rows)[sizes > 1e-12 * max(float(sizes.max()), 1e-300)]
    signs = np.sign(found[np.arange(len(found)), np.abs(found).argmax(axis=1)])
    return np.asarray(found * signs[:, None], dtype=np.float64)


def spread_evenly(count: int, width: int) -> Array:
    """Return ``count`` points that fill the unit cube of ``width`` dimensions evenly.

    Kronecker's sequence with the powers of 1/φ, φ^(width + 1) = φ + 1 (M. Roberts, The
    Unreasonable Effectiveness of Quasirandom Sequences, 2018). Quantiles of what is made of them
    scatter much less than those of random numbers, and nothing is drawn: there is no seed.
    """
    root = 2.0
    for _ in range(60):
        root = (1 + root) ** (1 / (width + 1))
    steps = np.arange(1, count + 1, dtype=np.float64)
    alphas = root ** -np.arange(1.0, width + 1)
    # In the middle of a cell: the ends of the unit interval have no finite quantile.
    found: Array = np.clip((0.5 + steps[:, None] * alphas) % 1.0, 0.5 / count, 1 - 0.5 / count)
    return found


def normal_draws(count: int) -> Array:
    """Return ``count`` standard normal numbers, the same in every run, in no order with others."""
    order = np.random.default_rng(_SEED).permutation(count)
    found: Array = ndtri((order + 0.5) / count)
    return found


def sample_of(points: Sequence[Point]) -> Sample:
    """Return the sample of a curve's points, all with launches."""
    by_block = [_by_block(point, paired=False) for point in points]
    every = sorted({block for logs in by_block for block in logs})
    complete = [block for block in every if all(block in logs for logs in by_block)]
    counts = np.array([point.world_size for point in points], dtype=np.float64)
    alone = len(every) == 1
    if len(complete) >= 2 or alone:
        return _of_blocks(counts, by_block, complete, len(every))
    return _of_launches(counts, points)


def _by_block(point: Point, *, paired: bool) -> dict[BlockKey, float]:
    """Return the mean log throughput (or speedup, ``paired``) of a point in each block."""
    found: dict[BlockKey, list[float]] = {}
    for launch in point.launches:
        value = launch.speedup if paired else launch.throughput_samples_per_s
        assert value is not None  # the caller knows
        found.setdefault(launch.block, []).append(math.log(value))
    return {block: float(np.mean(logs)) for block, logs in found.items()}


def _of_blocks(
    counts: Array,
    by_block: Sequence[Mapping[BlockKey, float]],
    complete: Sequence[BlockKey],
    blocks: int,
) -> Sample:
    groups: dict[str, list[list[float]]] = {}
    for block in complete:
        groups.setdefault(block[0], []).append([logs[block] for logs in by_block])
    several = len(groups) > 1
    rows = (
        np.array([np.mean(group, axis=0) for group in groups.values()])
        if several
        else np.array(next(iter(groups.values())))
    )
    n = rows.shape[0]
    mean = rows.mean(axis=0)
    errors = (rows - mean) / math.sqrt(n * (n - 1)) if n > 1 else np.zeros((1, counts.size))
    words = f"t, {n} allocations" if several else f"t, {n} blocks of one allocation"
    left = blocks - len(complete)
    lack = "1 block lacks a point and is" if left == 1 else f"{left} blocks lack a point and are"
    return Sample(
        counts=counts,
        logs=mean,
        errors=errors,
        freedom=n - 1,
        units=n,
        method=words if n > 1 else "one block: no interval",
        note=f"{lack} not in the laws' fits" if left else None,
    )


def _of_launches(counts: Array, points: Sequence[Point]) -> Sample:
    launches = [launch for point in points for launch in point.launches]
    paired = all(launch.speedup is not None for launch in launches)
    groups = [_units(_by_block(point, paired=paired)) for point in points]
    freedom = sum(group.size - 1 for group in groups)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    scatter = math.sqrt(squares / freedom) if freedom else 0.0
    logs = np.array([group.mean() for group in groups])
    errors = np.diag([scatter / math.sqrt(group.size) for group in groups])
    if paired:
        base = _units(_base_logs(launches))
        logs = logs + base.mean()
        shared = float(base.std(ddof=1)) / math.sqrt(base.size) if base.size > 1 else 0.0
        errors = np.vstack([errors, np.full(counts.size, shared)])
    how = "relative to its block's base" if paired else "as it is, without a base beside it"
    return Sample(
        counts=counts,
        logs=logs,
        errors=errors,
        freedom=freedom,
        units=len(launches),
        method=f"t, scatter of {len(launches)} launches" if freedom else "one launch a point",
        note=f"no two blocks have every point, so the laws take each throughput {how}",
    )


def _base_logs(launches: Sequence[Launch]) -> dict[BlockKey, float]:
    return {
        one.block: math.log(one.throughput_samples_per_s / one.speedup)
        for one in launches
        if one.speedup is not None
    }


def _units(logs: Mapping[BlockKey, float]) -> Array:
    """Return the values that count as independent: allocations' means, or one's blocks."""
    groups: dict[str, list[float]] = {}
    for (allocation, _), value in sorted(logs.items()):
        groups.setdefault(allocation, []).append(value)
    if len(groups) > 1:
        return np.array([float(np.mean(group)) for group in groups.values()])
    return np.array(next(iter(groups.values())))
