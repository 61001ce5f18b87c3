"""Amdahl's law: strong scaling, a fraction f of one device's step does not shrink with N.

    T(N) = T1 · (f + (1 − f)/N)

G. M. Amdahl, Validity of the single processor approach to achieving large scale computing
capabilities, AFIPS Spring Joint Computer Conference, 1967. In coefficients, a sample taking
β0 + β1/N seconds: f = β0/(β0 + β1), T1 = global batch · (β0 + β1). f is in [0, 1] by β ≥ 0.

What it leaves out: that anything grows with N. All that an all-reduce takes is in f, as a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.models.laws import Law, LawModel, Part, Quantity, fit_law
from harness.analysis.models.sample import Array
from harness.analysis.scaling import Curve


def fit_amdahl(curve: Curve) -> LawModel:
    """Fit Amdahl's law to a strong-scaling curve; errors as of ``fit_law``."""
    return fit_law(AMDAHL, curve)


def fit_amdahl_from_2(curve: Curve) -> LawModel:
    """Fit it without N = 1."""
    return fit_law(AMDAHL, curve, from_2=True)


def _basis(counts: Array) -> Array:
    return np.stack([np.ones_like(counts), 1 / counts], axis=1)


def _step_parts(n: float, beta: Array, samples: float) -> Sequence[float]:
    return (samples * beta[0], samples * beta[1] / n)


def _at_bounds(beta: Array) -> Sequence[str]:
    if beta[0] == 0.0:
        return ("f is at its bound 0: within the data nothing is serial",)
    if beta[1] == 0.0:
        return ("f is at its bound 1: more devices take no time off a step",)
    return ()


AMDAHL = Law(
    name="amdahl",
    formula="T(N) = T1·(f + (1 − f)/N)",
    scalings=("strong",),
    refusal="Amdahl's is a law of strong scaling (the global batch is kept)",
    of_rate=False,
    basis=_basis,
    step_parts=_step_parts,
    parts=(
        Part("serial part", "what does not shrink with N stays as long as it is, growing nowhere"),
        Part("parallel part", "the rest of a step goes on dividing evenly among N devices"),
    ),
    quantities=(
        Quantity(
            "serial fraction", "f", "", "share of one device's step that does not shrink with N",
            lambda beta, _: beta[:, 0] / beta.sum(axis=1),
        ),
        Quantity(
            "step of one device", "T1", "s", "the law's step at N = 1",
            lambda beta, batch: batch * beta.sum(axis=1),
        ),
    ),
    at_bounds=_at_bounds,
)  # fmt: skip
