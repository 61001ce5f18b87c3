"""Shear stress-strain curves of a soil in cyclic loading: a hyperbolic backbone and Masing's rules.

Backbone: the modified hyperbola of Darendeli (2001, *Development of a new family of normalized
modulus reduction and material damping curves*, PhD thesis, University of Texas at Austin), which
generalises Kondner (1963) and Hardin & Drnevich (1972, J. Soil Mech. Found. Div. 98(SM7)) by the
exponent a::

    tau(gamma) = G0 * gamma / (1 + (|gamma| / gamma_r)**a)

G0 is the initial shear modulus (Pa), gamma_r the reference strain, at which the secant modulus is
G0/2. The reference strain is fixed here, so that two parameters, G0 and a, make the curve.

Unloading and reloading: Masing (1926, *Eigenspannungen und Verfestigung beim Messing*, Proc. 2nd
Int. Congr. Appl. Mech., Zurich): after a reversal at (gamma_0, tau_0) the branch is the backbone
at twice the scale::

    tau = tau_0 + 2 * backbone((gamma - gamma_0) / 2)

and, by the extended rules (Pyke 1979, J. Geotech. Eng. Div. 105(GT6)), a branch that meets the
backbone again follows the backbone from there on.

The strain path is 0 -> +A1 (first loading) -> -A2 (unloading) -> +A3 (reloading), for any three
amplitudes > 0. On it the rules have a closed form: unloading meets the backbone at -A1, reloading
at +max(A1, A2). All functions work on *reduced* quantities: strain / gamma_r, and
stress / (G0 * gamma_r); both are of order 1 and have no unit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]

#: gamma_r, no unit (0.1 %): the strain at which the secant modulus has fallen to G0 / 2.
REFERENCE_STRAIN = 1e-3


def reduced_backbone(strain: Float, a: Float) -> Float:
    """Return the reduced stress of first loading; ``strain`` >= 0, reduced; shapes broadcast."""
    power: Float = np.power(strain, a)
    stress: Float = strain / (power + np.float32(1))
    return stress


def path_length(amplitudes: Float) -> Float:
    """Return the strain travelled on 0 -> A1 -> -A2 -> A3; ``amplitudes`` (n, 3) gives (n,)."""
    a1, a2, a3 = amplitudes.T
    length: Float = np.float32(2) * (a1 + a2) + a3
    return length


def cyclic_curve(travelled: Float, amplitudes: Float, a: Float) -> tuple[Float, Float]:
    """Return reduced strain and stress, each (n, p), after the strain ``travelled`` on the path.

    ``travelled`` (n, p) runs from 0 to ``path_length`` (reduced strain), ``amplitudes`` is (n, 3)
    with A1, A2, A3 > 0 (reduced), ``a`` (n,) the exponents. Each stretch of the path is
    ``offset + factor * backbone((travelled - start) / |factor|)``, so the power, which is the dear
    part, is taken once a point.
    """
    a1, a2, _ = (column[:, np.newaxis] for column in amplitudes.T)
    exponent = a[:, np.newaxis]
    two = np.float32(2)
    tip = reduced_backbone(a1, exponent)  # stress at the first reversal
    larger = np.maximum(a1, a2)
    # At the second reversal: on the backbone where A2 >= A1, else on the unloading branch.
    below = np.where(
        a2 >= a1,
        -reduced_backbone(a2, exponent),
        tip - two * reduced_backbone((a1 + a2) / two, exponent),
    )
    start, factor, offset = (np.zeros_like(travelled) for _ in range(3))
    factor += np.float32(1)
    stretches = (  # (begins after, start, factor, offset), in the order of the path
        (a1, a1, -2, tip),  # unloading
        (np.minimum(3 * a1, two * a1 + a2), two * a1, -1, np.float32(0)),  # the backbone again
        (two * a1 + a2, two * a1 + a2, 2, below),  # reloading
        (two * (a1 + a2) + larger, two * (a1 + a2), 1, np.float32(0)),  # the backbone again
    )
    for begin, from_, times, plus in stretches:
        inside = travelled > begin
        np.copyto(start, from_, where=inside)
        np.copyto(factor, np.float32(times), where=inside)
        np.copyto(offset, plus, where=inside)
    scale: Float = np.abs(factor)
    branch = reduced_backbone((travelled - start) / scale, exponent)
    stress: Float = offset + factor * branch
    return _path_strain(travelled, a1, a2), stress


def _path_strain(travelled: Float, a1: Float, a2: Float) -> Float:
    """Return the reduced strain, (n, p), on the path; ``a1`` and ``a2`` are (n, 1)."""
    two = np.float32(2)
    unloading = two * a1 - travelled
    return np.where(
        travelled <= a1,
        travelled,
        np.where(travelled <= two * a1 + a2, unloading, travelled - two * (a1 + a2)),
    )
