"""Labelled curves by index: curve i of a data set depends on (seed, i) and the noise alone.

A curve is 3 channels of 200 points, float32:

====  ======  ================================================================
row   name    value
====  ======  ================================================================
0     strain  measured shear strain / 1e-3 (so in units of 0.1 %)
1     stress  measured shear stress / 100 kPa
2     flag    1 where the point is padding, 0 where it was measured
====  ======  ================================================================

Both measured rows are of order 1, as a network wants them. A curve has 100 to 200 measured points,
equally spaced along its strain path; the padding behind them is strain 0, stress 0, flag 1.

The labels are G0 and a, drawn uniformly and normalised to 0..1 by ``G0_RANGE_PA`` and ``A_RANGE``,
so each has a variance of 1/12. Amplitudes are uniform in 0.5 to 3 reference strains: up to there,
the backbone rises for every ``a`` in its range (it would fall where
(gamma / gamma_r)**a > 1 / (a - 1), and 3**1.2 = 3.7 < 5).

Random numbers come from Philox (Salmon et al. 2011), a counter-based generator: curve i owns the
counters 52 i to 52 i + 51 under a key made of the seed, four 64-bit words each. NumPy promises the
words of its bit generators for good; the normal distribution is made from them here (Box-Muller),
since NumPy does not promise the streams of its distributions. On CPUs with other vector units the
elementary functions may differ in the last bits, so curves are equal to float32 rounding there, and
equal bit for bit on CPUs of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.normal import box_muller
from workloads.stress_strain import physics

Float = NDArray[np.float32]

#: Raised whenever the same (seed, i, noise) would give another curve.
GENERATOR_VERSION = 1

CHANNELS = 3
POINTS = 200
LABELS = 2
MIN_MEASURED_POINTS = 100
MEASURED, PADDING = 0.0, 1.0  # values of the flag

G0_RANGE_PA = (20e6, 200e6)
A_RANGE = (0.6, 1.2)
AMPLITUDE_RANGE = (0.5, 3.0)  # of each turning point of the strain path, in reference strains
STRAIN_UNIT = physics.REFERENCE_STRAIN  # so that reduced strain is the network's strain
STRESS_UNIT_PA = 100e3

_PARAMETER_WORDS = 8  # G0, a, three amplitudes, length, two spare
_NOISE_WORDS = POINTS  # one 64-bit word makes two normal numbers: for strain and for stress
_WORDS = _PARAMETER_WORDS + _NOISE_WORDS
_COUNTERS = _WORDS // 4  # Philox makes four words a counter
_KEY_DOMAIN = 0x6876645F7373 << 64  # "hvd_ss": other uses of the same seed get other streams


@dataclass(frozen=True)
class CurveSpec:
    """What decides a curve besides its index.

    ``stress_noise`` and ``strain_noise`` are the standard deviations of the measurement errors,
    independent from point to point, as fractions of the curve's greatest noise-free stress and
    strain.
    """

    seed: int
    stress_noise: float
    strain_noise: float


@dataclass(frozen=True)
class _Drawn:
    """The random parts of n curves."""

    labels: Float  # (n, 2)
    g0_pa: Float  # (n,)
    a: Float  # (n,)
    amplitudes: Float  # (n, 3), reduced
    measured: NDArray[np.int64]  # (n,), number of measured points
    normals: tuple[Float, Float]  # two of (n, POINTS)


def make_curves(spec: CurveSpec, start: int, stop: int) -> tuple[Float, Float]:
    """Return inputs (n, 3, 200) and labels (n, 2) of the curves ``start`` to ``stop`` - 1."""
    if not 0 <= start <= stop:
        raise ValueError(f"curves {start} to {stop} are no range")
    drawn = _draw(spec.seed, start, stop)
    inputs = np.empty((stop - start, CHANNELS, POINTS), np.float32)
    point = np.arange(POINTS, dtype=np.float32)
    gaps: Float = (drawn.measured - 1).astype(np.float32)
    step: Float = physics.path_length(drawn.amplitudes) / gaps
    padding = np.arange(POINTS) >= drawn.measured[:, np.newaxis]
    travelled: Float = point * step[:, np.newaxis]
    strain, stress = physics.cyclic_curve(travelled, drawn.amplitudes, drawn.a)
    _add_noise(spec, drawn, strain, stress)
    to_unit = drawn.g0_pa * np.float32(physics.REFERENCE_STRAIN / STRESS_UNIT_PA)
    inputs[:, 0] = strain
    np.multiply(stress, to_unit[:, np.newaxis], out=inputs[:, 1])
    np.copyto(inputs[:, :2], np.float32(0), where=padding[:, np.newaxis])
    inputs[:, 2] = np.where(padding, np.float32(PADDING), np.float32(MEASURED))
    return inputs, drawn.labels


def denormalise(labels: Float) -> tuple[Float, Float]:
    """Return G0 in Pa and a (no unit), each (n,), of normalised labels (n, 2)."""
    return _scale(labels[:, 0], G0_RANGE_PA), _scale(labels[:, 1], A_RANGE)


def _draw(seed: int, start: int, stop: int) -> _Drawn:
    """Draw the random parts of curves ``start`` to ``stop`` - 1."""
    bits = np.random.Philox(key=_KEY_DOMAIN | seed, counter=start * _COUNTERS)
    words = bits.random_raw((stop - start) * _WORDS).reshape(stop - start, _WORDS)
    # The 53 high bits, as a double in [0, 1).
    uniform = (words[:, :_PARAMETER_WORDS] >> np.uint64(11)) * 2.0**-53
    labels = uniform[:, :2].astype(np.float32)
    g0_pa, a = denormalise(labels)
    lengths = POINTS - MIN_MEASURED_POINTS + 1
    return _Drawn(
        labels=labels,
        g0_pa=g0_pa,
        a=a,
        amplitudes=_scale(uniform[:, 2:5].astype(np.float32), AMPLITUDE_RANGE),
        measured=MIN_MEASURED_POINTS + (uniform[:, 5] * lengths).astype(np.int64),
        normals=box_muller(np.ascontiguousarray(words[:, _PARAMETER_WORDS:])),
    )


def _add_noise(spec: CurveSpec, drawn: _Drawn, strain: Float, stress: Float) -> None:
    """Add the measurement errors to reduced ``strain`` and ``stress``, each (n, 200), in place."""
    largest = drawn.amplitudes.max(axis=1)
    peak = physics.reduced_backbone(largest, drawn.a)
    for values, error, noise, top in (
        (strain, drawn.normals[0], spec.strain_noise, largest),
        (stress, drawn.normals[1], spec.stress_noise, peak),
    ):
        values += error * (np.float32(noise) * top)[:, np.newaxis]


def _scale(unit: Float, limits: tuple[float, float]) -> Float:
    """Map 0..1 to ``limits``."""
    low, high = limits
    return np.float32(low) + unit * np.float32(high - low)
