"""The Universal Scalability Law: contention σ and crosstalk κ, which can turn throughput round.

    X(N) = λ·N / (1 + σ·(N − 1) + κ·N·(N − 1))

N. J. Gunther, A Simple Capacity Model of Massively Parallel Transaction Systems, CMG 1993; and
Guerrilla Capacity Planning, Springer 2007, chapters 4 and 6. It is a law of throughput, and is
taken for either kind of scaling: with κ = 0 it is Amdahl's law for strong scaling; with weak
scaling σ and κ are costs that a sample has, relative to one device's. In coefficients
N/X = β0 + β1·(N − 1) + β2·N·(N − 1): λ = 1/β0, σ = β1/β0, κ = β2/β0, all ≥ 0. σ is not held below
1: two devices may do less than one. Where κ > 0 the throughput is greatest at
N* = √((1 − σ)/κ).

What it leaves out: everything that grows otherwise than with N and N², a logarithm for instance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.models.laws import Law, LawModel, Part, Quantity, fit_law
from harness.analysis.models.sample import Array
from harness.analysis.scaling import Curve


def fit_usl(curve: Curve) -> LawModel:
    """Fit the USL to a curve; errors as of ``fit_law``."""
    return fit_law(USL, curve)


def fit_usl_from_2(curve: Curve) -> LawModel:
    """Fit it without N = 1."""
    return fit_law(USL, curve, from_2=True)


def _basis(counts: Array) -> Array:
    return np.stack([1 / counts, (counts - 1) / counts, counts - 1], axis=1)


def _step_parts(n: float, beta: Array, samples: float) -> Sequence[float]:
    share = samples / n
    return (share * beta[0], share * beta[1] * (n - 1), share * beta[2] * n * (n - 1))


def _ratio(above: Array, below: Array) -> Array:
    """Divide; what no device alone would take is endless in units of it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = np.where(below > 0, above / below, np.inf)
    return found


def _peak(beta: Array, _: float) -> Array:
    """Return N*; endless where κ = 0, 1 where a second device already takes away."""
    with np.errstate(divide="ignore", invalid="ignore"):
        square = np.where(beta[:, 2] > 0, (beta[:, 0] - beta[:, 1]) / beta[:, 2], np.inf)
    found: Array = np.sqrt(np.maximum(square, 1.0))
    return found


def _at_bounds(beta: Array) -> Sequence[str]:
    notes = []
    if beta[2] == 0.0:
        notes.append("κ is at its bound 0: within the data nothing turns throughput round")
    if beta[1] == 0.0:
        notes.append("σ is at its bound 0")
    return notes


USL = Law(
    name="usl",
    formula="X(N) = λ·N/(1 + σ·(N − 1) + κ·N·(N − 1))",
    scalings=("weak", "strong"),
    refusal="",
    of_rate=False,
    basis=_basis,
    step_parts=_step_parts,
    parts=(
        Part("one device's work", "a sample's own work takes as long at any N"),
        Part("contention", "what a sample waits goes on growing with N − 1"),
        Part("crosstalk", "what devices tell each other goes on growing with N·(N − 1)"),
    ),
    quantities=(
        Quantity(
            "throughput of one device", "λ", "samples/s", "the law's throughput at N = 1",
            lambda beta, _: _ratio(np.ones(len(beta)), beta[:, 0]),
        ),
        Quantity(
            "contention", "σ", "", "what each further device makes every sample wait, of its work",
            lambda beta, _: _ratio(beta[:, 1], beta[:, 0]),
        ),
        Quantity(
            "crosstalk", "κ", "", "the same of each pair of devices",
            lambda beta, _: _ratio(beta[:, 2], beta[:, 0]),
        ),
        Quantity("peak", "N*", "devices", "where throughput is greatest", _peak),
    ),
    at_bounds=_at_bounds,
)  # fmt: skip
