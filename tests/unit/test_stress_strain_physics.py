"""The constitutive model against hand arithmetic and against a step-by-step reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.stress_strain import physics
from workloads.stress_strain.curves import A_RANGE, AMPLITUDE_RANGE

amplitude = st.floats(*AMPLITUDE_RANGE, width=32, allow_nan=False)
exponent = st.floats(0.6000000238418579, 1.2000000476837158, width=32)


def curve(
    travelled: list[float], amplitudes: tuple[float, float, float], a: float
) -> tuple[np.ndarray, np.ndarray]:
    """One curve, as (strain, stress), both reduced."""
    strain, stress = physics.cyclic_curve(
        np.array([travelled], np.float32),
        np.array([amplitudes], np.float32),
        np.array([a], np.float32),
    )
    return strain[0], stress[0]


def by_memory(strains: np.ndarray, a: float) -> list[float]:
    """Stress along a strain path by the extended Masing rules with a stack of reversals.

    Written apart from the closed form: a branch is left upwards, for the one that it interrupted,
    when it comes back to the strain at which that one was interrupted.
    """

    def backbone(x: float) -> float:
        return x / (1 + abs(x) ** a)

    reversals: list[tuple[float, float]] = []  # (strain, stress), the latest last
    direction, stresses = 1, []
    last_x, last_y = 0.0, 0.0
    for x in (float(value) for value in strains):
        if x != last_x and np.sign(x - last_x) != direction:
            direction = -direction
            reversals.append((last_x, last_y))
        # A loop is closed where the strain goes past the reversal before the last one; the first
        # branch's loop closes at the mirror image of its reversal.
        while reversals:
            limit = reversals[-2][0] if len(reversals) > 1 else -reversals[-1][0]
            if direction * (x - limit) <= 0:
                break
            del reversals[-2:]
        if reversals:
            x0, y0 = reversals[-1]
            last_y = y0 + 2 * backbone((x - x0) / 2)
        else:
            last_y = backbone(x)
        last_x = x
        stresses.append(last_y)
    return stresses


def test_three_points_of_the_loop_by_hand() -> None:
    # G0 = 100 MPa, gamma_r = 0.1 %, a = 1: f(x) = x / (1 + x), stress unit G0 gamma_r = 100 kPa.
    # Path 0 -> 0.1 % -> -0.05 % -> 0.2 %, reduced 0 -> 1 -> -0.5 -> 2. First reversal: f(1) = 1/2.
    #
    # 1. Unloading, at strain 0 (travelled 1 + 1 = 2):
    #    1/2 - 2 f((1 - 0) / 2) = 1/2 - 2 * (0.5 / 1.5) = 1/2 - 2/3 = -1/6     -> -16.667 kPa
    # 2. Second reversal, at strain -0.5 (travelled 1 + 1.5 = 2.5):
    #    1/2 - 2 f((1 + 0.5) / 2) = 1/2 - 2 * (0.75 / 1.75) = 1/2 - 6/7 = -5/14 -> -35.714 kPa
    # 3. Reloading, at strain 0.25 (travelled 2.5 + 0.75 = 3.25):
    #    -5/14 + 2 f(0.75 / 2) = -5/14 + 2 * (0.375 / 1.375) = -5/14 + 6/11
    #    = (-55 + 84) / 154 = 29/154                                           ->  18.831 kPa
    strain, stress = curve([2.0, 2.5, 3.25], (1.0, 0.5, 2.0), a=1.0)
    assert strain * physics.REFERENCE_STRAIN == pytest.approx([0.0, -0.5e-3, 0.25e-3], abs=1e-9)
    kpa = stress * 100e6 * physics.REFERENCE_STRAIN / 1e3
    assert kpa == pytest.approx([-16.6667, -35.7143, 18.8312], abs=1e-3)


def test_reloading_closes_the_loop_and_goes_on_along_the_backbone() -> None:
    # At strain 1 (travelled 2.5 + 1.5 = 4): -5/14 + 2 f(0.75) = -5/14 + 6/7 = 1/2, the first
    # reversal's stress. At strain 2 (travelled 5): f(2) = 2/3, as if never unloaded.
    _, stress = curve([4.0, 5.0], (1.0, 0.5, 2.0), a=1.0)
    assert stress == pytest.approx([1 / 2, 2 / 3], abs=1e-6)


def test_unloading_beyond_the_mirror_image_follows_the_backbone() -> None:
    # Path 0 -> 1 -> -2: from strain -1 on (travelled 3) it is -f: at -1.5 -0.6, at -2 -2/3.
    strain, stress = curve([3.0, 3.5, 4.0], (1.0, 2.0, 1.0), a=1.0)
    assert strain == pytest.approx([-1.0, -1.5, -2.0])
    assert stress == pytest.approx([-0.5, -0.6, -2 / 3], abs=1e-6)


def test_backbone_exponent_by_hand() -> None:
    # a = 1/2: f(1/4) = 0.25 / (1 + 0.5) = 1/6, f(4) = 4 / (1 + 2) = 4/3. At x = 1 always 1/2.
    x = np.array([0.25, 4.0, 1.0, 0.0], np.float32)
    half = physics.reduced_backbone(x, np.full(4, 0.5, np.float32))
    assert half == pytest.approx([1 / 6, 4 / 3, 1 / 2, 0.0], abs=1e-6)


@settings(deadline=None)
@given(amplitude, amplitude, amplitude, exponent)
def test_closed_form_agrees_with_a_stack_of_reversals(
    a1: float, a2: float, a3: float, a: float
) -> None:
    total = float(physics.path_length(np.array([[a1, a2, a3]], np.float32))[0])
    assert total == pytest.approx(a1 + (a1 + a2) + (a2 + a3), rel=1e-6)
    # The turning points are on the grid, so that the reference turns exactly there.
    turns = [a1, 2 * a1 + a2, total]
    travelled = np.sort(np.concatenate([np.linspace(0, total, 97), turns]))
    strain, stress = curve(travelled.tolist(), (a1, a2, a3), a)
    exact = np.interp(travelled, [0.0, *turns], [0.0, a1, -a2, a3])
    assert strain == pytest.approx(exact, abs=1e-5)
    assert stress == pytest.approx(by_memory(exact, a), abs=2e-5)


def test_backbone_rises_over_the_whole_range_of_parameters() -> None:
    x = np.linspace(0, AMPLITUDE_RANGE[1], 400, dtype=np.float32)
    for a in np.linspace(*A_RANGE, 13, dtype=np.float32):
        assert np.all(np.diff(physics.reduced_backbone(x, a)) > 0)
