"""The gradient noise scale, a guide to useful batch sizes, from local and reduced gradients.

B_simple = tr(Σ) / |G|², G being the true gradient and Σ the covariance of one sample's (McCandlish,
Kaplan, Amodei et al., An Empirical Model of Large-Batch Training, 2018). Far below that batch a
larger one makes progress a step in proportion, far above it makes next to none.

The gradient of a batch of B samples has E|G_B|² = |G|² + tr(Σ)/B, so its norms at two sizes give
both, without bias (appendix A.1 there)::

    |G|²  ≈ (B·|G_B|² − b·|G_b|²) / (B − b)
    tr(Σ) ≈ (|G_b|² − |G_B|²) / (1/b − 1/B)

With N ranks b is a rank's batch and B = N·b the global one, as the all-reduce averages it; the
norms of all local gradients are averaged. One rank alone takes pairs of batches: b and 2b. Single
estimates scatter widely and a ratio of them is biased, so numerator and denominator are averaged
over batches, and divided last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.engines.api import Engine, Step, World
from harness.feed.shard import Feed
from harness.record import NoiseEstimate

BATCHES = 8  # estimates that are averaged
_CHUNK = 1 << 20  # elements that are squared at once: a copy of all in double precision may be GBs


@dataclass(frozen=True)
class Norms:
    """Squared L2 norms of gradients at two batch sizes, one of each a batch, (batches,)."""

    small_batch: int  # samples, b
    large_batch: int  # samples, B
    small_sq: NDArray[np.float64]  # mean over the gradients that make up the large one
    large_sq: NDArray[np.float64]


def estimate(norms: Norms, step: int) -> NoiseEstimate:
    """Return |G|², tr(Σ) and their ratio; None for that where the estimate of |G|² is not positive.

    Raises ValueError where there is nothing to estimate from.
    """
    b, large = norms.small_batch, norms.large_batch
    if not (0 < b < large and 0 < len(norms.small_sq) == len(norms.large_sq)):
        raise ValueError(f"no noise scale from {len(norms.small_sq)} batches of {b} and {large}")
    small_sq, large_sq = float(np.mean(norms.small_sq)), float(np.mean(norms.large_sq))
    gradient_sq = (large * large_sq - b * small_sq) / (large - b)
    trace = (small_sq - large_sq) / (1 / b - 1 / large)
    return NoiseEstimate(
        step=step,
        batches=len(norms.small_sq),
        small_batch=b,
        large_batch=large,
        gradient_norm_sq=gradient_sq,
        noise_trace=trace,
        noise_scale=trace / gradient_sq if gradient_sq > 0 else None,
    )


def measure_norms(
    step: Step, feed: Feed, engine: Engine, world: World, rank_batch: int, batches: int = BATCHES
) -> Norms:
    """Return the norms at the present weights, from the batches that come next.

    All ranks must call it; each gets the same. Training goes on as if never: weights, buffers and
    random state are the step's own care, and the position in the data is put back.
    """
    position = feed.position
    alone = world.size == 1
    taken = _pairs if alone else _reduced
    try:
        found = [taken(step, feed, engine, world) for _ in range(batches)]
    finally:
        feed.seek(position)
    small_sq, large_sq = np.array(found).T
    return Norms(rank_batch, rank_batch * (2 if alone else world.size), small_sq, large_sq)


def _reduced(step: Step, feed: Feed, engine: Engine, world: World) -> tuple[float, float]:
    gradient = step.gradient(feed.next())
    mine = norm_sq(engine.to_host(gradient))
    engine.allreduce(gradient)  # the sum, in place
    whole = norm_sq(engine.to_host(gradient)) / world.size**2
    return float(np.mean(engine.gather(mine))), whole


def _pairs(step: Step, feed: Feed, engine: Engine, _: World) -> tuple[float, float]:
    # Copies: what an engine hands to the host may be the very memory of the next gradient.
    first, second = (np.array(engine.to_host(step.gradient(feed.next()))) for _ in range(2))
    small = (norm_sq(first) + norm_sq(second)) / 2
    return small, norm_sq((first + second) / 2)


def norm_sq(values: ArrayLike) -> float:
    """Return the squared L2 norm of a flat array, summed in double precision."""
    flat: NDArray[Any] = np.ravel(np.asarray(values))
    total = 0.0
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK].astype(np.float64)
        total += float(chunk @ chunk)
    return total
