"""Curves by index: independent of how a range is cut, padded, scaled and noisy as documented."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.stress_strain import curves
from workloads.stress_strain.curves import CurveSpec, make_curves

GOLDEN = Path(__file__).parents[1] / "golden" / "stress_strain_curves.json"
SPEC = CurveSpec(seed=1, stress_noise=0.02, strain_noise=0.005)
CLEAN = CurveSpec(seed=1, stress_noise=0.0, strain_noise=0.0)


def test_curves_are_those_of_the_golden_file() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden["generator"] == curves.GENERATOR_VERSION, (
        "a new generator needs a new golden file"
    )
    for wanted in golden["curves"]:
        inputs, labels = make_curves(
            CurveSpec(**wanted["spec"]), wanted["index"], wanted["index"] + 1
        )
        # Labels are plain arithmetic on Philox words: exact. Curves go through exp, log and cos.
        assert labels[0].tolist() == wanted["labels"]
        assert int((inputs[0, 2] == curves.MEASURED).sum()) == wanted["measured"]
        values = inputs[0, :2][:, golden["points"]].T
        assert values == pytest.approx(np.array(wanted["values"]), rel=1e-5, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    start=st.integers(0, 10**12),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_a_curve_depends_on_seed_and_index_alone(seed: int, start: int, cuts: list[int]) -> None:
    spec = CurveSpec(seed, stress_noise=0.02, strain_noise=0.005)
    whole_inputs, whole_labels = make_curves(spec, start, start + 40)
    edges = [0, *sorted(cuts), 40]
    pieces = [make_curves(spec, start + low, start + high) for low, high in pairwise(edges)]
    assert np.array_equal(np.concatenate([inputs for inputs, _ in pieces]), whole_inputs)
    assert np.array_equal(np.concatenate([labels for _, labels in pieces]), whole_labels)


def test_other_seeds_and_indices_are_other_curves() -> None:
    _, labels = make_curves(SPEC, 0, 1000)
    _, others = make_curves(CurveSpec(2, 0.02, 0.005), 0, 1000)
    assert len(np.unique(labels, axis=0)) == 1000
    assert not np.any(np.all(labels == others, axis=1))
    assert abs(np.corrcoef(labels[:, 0], others[:, 0])[0, 1]) < 0.1


def test_shapes_types_and_padding() -> None:
    inputs, labels = make_curves(SPEC, 0, 3000)
    assert inputs.shape == (3000, 3, 200)
    assert labels.shape == (3000, 2)
    assert inputs.dtype == labels.dtype == np.float32
    assert inputs.flags.c_contiguous
    assert np.isfinite(inputs).all()
    flag = inputs[:, 2]
    assert set(np.unique(flag)) == {curves.MEASURED, curves.PADDING}
    assert np.all(np.diff(flag, axis=1) >= 0), "padding is behind the measured points"
    assert np.all(inputs[:, :2][np.repeat(flag[:, np.newaxis] == curves.PADDING, 2, axis=1)] == 0)
    measured = (flag == curves.MEASURED).sum(axis=1)
    assert measured.min() == curves.MIN_MEASURED_POINTS
    assert measured.max() == curves.POINTS


def test_labels_fill_the_unit_square_evenly() -> None:
    _, labels = make_curves(SPEC, 0, 20_000)
    assert labels.min() >= 0
    assert labels.max() < 1
    assert labels.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.01)
    assert labels.var(axis=0) == pytest.approx([1 / 12, 1 / 12], rel=0.03)
    assert abs(np.corrcoef(labels.T)[0, 1]) < 0.03


def test_inputs_are_of_order_one() -> None:
    inputs, _ = make_curves(SPEC, 0, 5000)
    spread = inputs.std(axis=(0, 2))
    assert np.all((spread > 0.3) & (spread < 2))
    assert np.abs(inputs).max() < 5


def test_clean_curve_obeys_the_backbone_in_physical_units() -> None:
    inputs, labels = make_curves(CLEAN, 0, 200)
    g0_pa, a = curves.denormalise(labels)
    # The second point is on first loading for every curve: its step is below every amplitude.
    gamma = inputs[:, 0, 1].astype(float) * curves.STRAIN_UNIT
    tau_pa = inputs[:, 1, 1].astype(float) * curves.STRESS_UNIT_PA
    assert np.all(gamma > 0)
    assert tau_pa == pytest.approx(g0_pa * gamma / (1 + (gamma / 1e-3) ** a), rel=1e-4)
    assert np.all((g0_pa >= 20e6) & (g0_pa <= 200e6))
    assert np.all((a >= 0.6) & (a <= 1.2001))


@pytest.mark.parametrize(("channel", "noise"), [(0, 0.005), (1, 0.02)])
def test_noise_is_normal_and_as_large_as_asked(channel: int, noise: float) -> None:
    clean, labels = make_curves(CLEAN, 0, 4000)
    noisy, same_labels = make_curves(SPEC, 0, 4000)
    assert np.array_equal(labels, same_labels)
    measured = clean[:, 2] == curves.MEASURED
    # Against the turning points, which the grid of points misses by a little.
    top = np.abs(clean[:, channel]).max(axis=1, keepdims=True)
    error = ((noisy[:, channel] - clean[:, channel]) / top)[measured]
    assert error.std() == pytest.approx(noise, rel=0.02)
    assert error.mean() == pytest.approx(0, abs=noise / 100)
    standard = error / error.std()
    assert np.mean(np.abs(standard) < 1) == pytest.approx(0.6827, abs=0.005)
    assert np.mean(np.abs(standard) < 2) == pytest.approx(0.9545, abs=0.005)
    assert np.mean(standard[1:] * standard[:-1]) == pytest.approx(0, abs=0.01)


def test_errors_of_strain_and_stress_are_independent() -> None:
    difference = make_curves(SPEC, 0, 2000)[0] - make_curves(CLEAN, 0, 2000)[0]
    strain, stress = difference[:, 0].ravel(), difference[:, 1].ravel()
    assert abs(np.corrcoef(strain, stress)[0, 1]) < 0.01


def test_an_empty_range_is_empty_and_a_reversed_one_is_refused() -> None:
    inputs, labels = make_curves(SPEC, 7, 7)
    assert (inputs.shape, labels.shape) == ((0, 3, 200), (0, 2))
    with pytest.raises(ValueError, match="no range"):
        make_curves(SPEC, 8, 7)
