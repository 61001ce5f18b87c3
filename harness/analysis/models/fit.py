"""Fits of laws that are sums of non-negative parts, on logarithms, many samples at once.

Each law here is linear in suitable coefficients: ``q(N) = Σ_j φ_j(N) · β_j`` with ``β ≥ 0``, where
q is the throughput or its reciprocal. Least squares on logarithms,

    minimise over β ≥ 0:   Σ_i (y_i − ln Σ_j φ_j(N_i) β_j)²,

weighs relative errors, which is what launches have. It is solved by Gauss and Newton's steps: with
g = Φβ, residual r = y − ln g and Jacobian J = Φ/g one has Jβ = 1, so the next β is the
non-negative least-squares solution of ``J β = 1 + r``, its step halved until the sum falls. With at
most three coefficients that solution is the best of the few unconstrained ones on subsets of
columns (Lawson & Hanson, Solving Least Squares Problems, 1974, chapter 23: one of them is it).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from harness.errors import AnalysisError

Array = NDArray[np.float64]
_STEPS, _HALVINGS = 60, 6
_STILL, _EXACT = 1e-10, 1e-18  # relative fall of the sum of squares; a sum that is none
_NOTHING = 1e-12


def nonnegative_log_fit(basis: Array, logs: Array, near: Array | None = None) -> Array:
    """Return β, shape (d, p), of ``d`` samples of logarithms, (d, k), in a basis (k, p).

    ``near``, (p,), is where to begin: a β of samples like these. The basis is non-negative, of full
    column rank, and no row of it is zero. Raises AnalysisError where it is not of full rank: fewer
    different device counts than coefficients.
    """
    if basis.shape[0] < basis.shape[1] or np.linalg.matrix_rank(basis) < basis.shape[1]:
        raise AnalysisError(
            f"{basis.shape[1]} parameters need as many different device counts, "
            f"there are {np.linalg.matrix_rank(basis)}"
        )
    # One device's pace in one's own unit: no sample's fit depends on how fast it is.
    level = logs.mean(axis=1, keepdims=True)
    target = logs - level
    start = 1 / basis.mean(axis=0) if near is None else near
    start = start / np.exp(np.log(basis @ start).mean())
    beta = np.repeat(start[None, :], len(logs), axis=0)
    cost = _cost(basis, beta, target)
    moving = np.arange(len(logs))
    for _ in range(_STEPS):
        if not moving.size:
            break
        beta[moving], fallen = _step(basis, beta[moving], target[moving], cost[moving])
        still = cost[moving] - fallen <= _STILL * fallen + _EXACT
        cost[moving] = fallen
        moving = moving[~still]
    # What is a rounding error of the whole at every count is a part that is not there.
    share = (basis[None, :, :] * beta[:, None, :] / (beta @ basis.T)[:, :, None]).max(axis=1)
    found: Array = np.where(share > _NOTHING, beta, 0.0) * np.exp(level)
    return found


def _step(basis: Array, beta: Array, target: Array, cost: Array) -> tuple[Array, Array]:
    """Return β after one step that lowers the sum of squares, and that sum; else as they were."""
    fitted = beta @ basis.T
    residual = target - np.log(fitted)
    wanted = _nonnegative(basis[None, :, :] / fitted[:, :, None], 1 + residual, beta)
    best, best_cost = beta.copy(), cost.copy()
    for halving in range(_HALVINGS):
        tried = beta + (wanted - beta) / 2**halving
        found = _cost(basis, tried, target)
        better = (found < best_cost) & (best_cost == cost)
        best[better], best_cost[better] = tried[better], found[better]
        if (best_cost < cost).all():
            break
    return best, best_cost


def _cost(basis: Array, beta: Array, target: Array) -> Array:
    fitted = beta @ basis.T
    with np.errstate(divide="ignore"):
        residual = target - np.log(fitted)
    found: Array = (residual**2).sum(axis=1)
    return found


def _nonnegative(matrix: Array, target: Array, otherwise: Array) -> Array:
    """Return x ≥ 0, (d, p), that minimises |matrix · x − target|², (d, k, p) and (d, k).

    ``otherwise`` is returned for samples whose best x is zero, which no logarithm has.
    """
    best = otherwise.copy()
    least = np.full(len(target), np.inf)
    width = matrix.shape[2]
    for size in range(1, width + 1):
        for columns in combinations(range(width), size):
            part = matrix[:, :, columns]
            norms = np.sqrt((part**2).sum(axis=1, keepdims=True))
            scaled = part / norms
            normal = np.einsum("dki,dkj->dij", scaled, scaled)
            right = np.einsum("dki,dk->di", scaled, target)
            x = np.linalg.solve(normal, right[:, :, None])[:, :, 0]
            left = ((np.einsum("dki,di->dk", scaled, x) - target) ** 2).sum(axis=1)
            taken = (x >= 0).all(axis=1) & (x.sum(axis=1) > 0) & (left < least)
            least[taken] = left[taken]
            best[taken] = 0.0
            best[np.ix_(taken, columns)] = (x / norms[:, 0, :])[taken]
    return best
