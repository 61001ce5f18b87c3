"""From values of blocks to plausible sets of parameters: draws that keep blocks together.

A mean of m blocks with standard deviation s is drawn as ``mean + t · s / √m``, t being Student's
with m − 1 degrees of freedom. All quantities of a block are drawn with the same weights, so what a
slow block does to all of them stays together::

    draw = mean + Σ_b z_b (x_b − mean) / √(m(m − 1)) / √(χ² / (m − 1)),   z_b ~ N(0, 1)

Several allocations are the outer level: each counts once, by the mean of its blocks (``stats``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from harness.stats import LEVEL, BlockKey, Interval

Draws = NDArray[np.float64]  # (1 + count,): the estimate first
_SEED = 20220
_TINY = 1e-300


@dataclass(frozen=True)
class Spread:
    """The units of repetition of one curve, and a weight of each in every draw."""

    units: tuple[Hashable, ...]  # blocks, or allocations where there are several
    by_allocation: bool
    weights: NDArray[np.float64]  # (count, units)

    @classmethod
    def over(cls, blocks: Iterable[BlockKey], count: int) -> Spread:
        """Return the weights of ``count`` draws, always the same for the same blocks."""
        every = sorted(set(blocks))
        allocations = sorted({allocation for allocation, _ in every})
        several = len(allocations) > 1
        units: tuple[Hashable, ...] = tuple(allocations) if several else tuple(every)
        random = np.random.default_rng(_SEED)
        z = random.standard_normal((count, len(units)))
        if len(units) > 1:
            free = len(units) - 1
            z /= np.sqrt(random.chisquare(free, count) / free)[:, None]
        return cls(units, several, z)

    @property
    def has_interval(self) -> bool:
        """Say whether there are two units or more."""
        return len(self.units) > 1

    @property
    def method(self) -> str:
        """Say what intervals rest on."""
        if not self.has_interval:
            return "one block: no interval"
        what = "allocations" if self.by_allocation else "blocks of one allocation"
        return f"t, {len(self.units)} {what}, carried through the model"

    def draws(self, values: Mapping[BlockKey, float]) -> Draws:
        """Return the mean of ``values``, then its draws; none is below zero."""
        units = self._by_unit(values)
        x = np.asarray([units[key] for key in self.units if key in units])
        mean = float(x.mean())
        found = np.full(1 + len(self.weights), mean)
        if x.size > 1:
            columns = [at for at, key in enumerate(self.units) if key in units]
            off = self.weights[:, columns] @ (x - mean) / np.sqrt(x.size * (x.size - 1))
            found[1:] += off
        return positive(found)

    def _by_unit(self, values: Mapping[BlockKey, float]) -> dict[Hashable, float]:
        if not self.by_allocation:
            return dict(values)
        groups: dict[Hashable, list[float]] = {}
        for (allocation, _), value in values.items():
            groups.setdefault(allocation, []).append(value)
        return {allocation: fmean(found) for allocation, found in groups.items()}

    def interval(self, draws: Draws, level: float = LEVEL) -> Interval:
        """Return the interval of what ``draws`` are of."""
        estimate = float(draws[0])
        if not self.has_interval:
            return Interval(estimate, None, None, level, 1, self.method)
        half = (1 - level) / 2
        low, high = np.quantile(draws[1:], (half, 1 - half))
        return Interval(estimate, float(low), float(high), level, len(self.units), self.method)


def positive(x: Draws) -> Draws:
    """Return ``x`` with zero in place of what is below: a time that noise made negative."""
    found: Draws = np.maximum(x, 0.0)
    return found


def bounded_pair(a: Draws, b: Draws, y: Draws, most: float = np.inf) -> tuple[Draws, Draws]:
    """Return (p, q) that make ``p·a + q·b`` closest to ``y`` with 0 ≤ p ≤ ``most`` and q ≥ 0.

    ``a``, ``b`` and ``y`` have the shape (draws, points); least squares, for each draw alone. With
    two parameters the best lies inside or on one of the edges, so all of them are tried.
    """
    aa, bb, ab = (a * a).sum(1), (b * b).sum(1), (a * b).sum(1)
    ay, by = (a * y).sum(1), (b * y).sum(1)
    determinant = aa * bb - ab * ab
    solvable = determinant > 1e-12 * np.maximum(aa * bb, _TINY)
    safe = np.where(solvable, determinant, 1.0)
    p, q = (ay * bb - by * ab) / safe, (by * aa - ay * ab) / safe
    inside = solvable & (p >= 0) & (p <= most) & (q >= 0)
    zero = np.zeros_like(aa)
    edges = [
        (np.where(inside, p, 0.0), np.where(inside, q, 0.0)),
        (zero, np.maximum(by / np.maximum(bb, _TINY), 0.0)),
        (np.clip(ay / np.maximum(aa, _TINY), 0.0, most), zero),
    ]
    if np.isfinite(most):
        edges.append((zero + most, np.maximum((by - most * ab) / np.maximum(bb, _TINY), 0.0)))
    errors = [((p_[:, None] * a + q_[:, None] * b - y) ** 2).sum(1) for p_, q_ in edges]
    best = np.argmin(errors, axis=0)
    rows = np.arange(len(aa))
    return np.stack([e[0] for e in edges])[best, rows], np.stack([e[1] for e in edges])[best, rows]
