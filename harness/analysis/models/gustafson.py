"""Gustafson's law: weak scaling, the work grows with N and a fraction f of the time does not pay.

    scaled speedup  S(N) = N − f·(N − 1),  throughput  X(N) = λ · S(N)

J. L. Gustafson, Reevaluating Amdahl's law, Communications of the ACM 31 (5), 1988. In coefficients
X = β0·N + β1: λ = β0 + β1 is one device's throughput, f = β1/λ in [0, 1] by β ≥ 0; a step takes
T(N) = T1·N/(N − f·(N − 1)) with T1 = batch of a rank/λ, at most T1/(1 − f).

What it leaves out: that a device's share of time lost grows with N. Its throughput is a straight
line, so it promises the last measured gain for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.models.laws import Law, LawModel, Part, Quantity, fit_law
from harness.analysis.models.sample import Array
from harness.analysis.scaling import Curve


def fit_gustafson(curve: Curve) -> LawModel:
    """Fit Gustafson's law to a weak-scaling curve; errors as of ``fit_law``."""
    return fit_law(GUSTAFSON, curve)


def fit_gustafson_from_2(curve: Curve) -> LawModel:
    """Fit it without N = 1."""
    return fit_law(GUSTAFSON, curve, from_2=True)


def _basis(counts: Array) -> Array:
    return np.stack([counts, np.ones_like(counts)], axis=1)


def _step_parts(n: float, beta: Array, samples: float) -> Sequence[float]:
    one_s = samples / n / beta.sum()
    return (one_s, samples / (beta[0] * n + beta[1]) - one_s)


def _at_bounds(beta: Array) -> Sequence[str]:
    if beta[1] == 0.0:
        return ("f is at its bound 0: within the data each device adds a whole one's throughput",)
    if beta[0] == 0.0:
        return ("f is at its bound 1: more devices add no throughput",)
    return ()


GUSTAFSON = Law(
    name="gustafson",
    formula="S(N) = N − f·(N − 1), X = λ·S",
    scalings=("weak",),
    refusal="Gustafson's is a law of weak scaling (the batch of a rank is kept)",
    of_rate=True,
    basis=_basis,
    step_parts=_step_parts,
    parts=(
        Part("one device's step", "a rank's own work takes as long at any N"),
        Part("what N adds", "each further device goes on adding 1 − f of one's throughput"),
    ),
    quantities=(
        Quantity(
            "serial fraction", "f", "", "share of a device that each further one does not add",
            lambda beta, _: beta[:, 1] / beta.sum(axis=1),
        ),
        Quantity(
            "throughput of one device", "λ", "samples/s", "the law's throughput at N = 1",
            lambda beta, _: beta.sum(axis=1),
        ),
    ),
    at_bounds=_at_bounds,
)  # fmt: skip
