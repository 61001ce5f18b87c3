"""A chosen model's throughput at a place, and what follows from it, with their intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from harness.analysis.models.api import Place
from harness.analysis.models.selection import Candidate, Selection, ends, log_draws
from harness.analysis.scaling import Curve
from harness.stats import Interval, geometric_interval

#: Far out an error in ln grows without end; farther than e^±50 from the estimate nothing is told,
#: and soon no number is left to say it.
_LARGEST = 50.0


def rate_at(selection: Selection, candidate: Candidate, place: Place) -> Interval:
    """Return the throughput at a place, in samples/s."""
    curve = selection.curve
    measured = curve.points[0].throughput_samples_per_s
    samples = _step_samples(curve, place.world_size)
    estimate = samples / candidate.model.step_s(place)
    logs = log_draws(selection, candidate, place)
    if logs is None:
        method = "one block, nothing held out: no interval"
        return Interval(estimate, None, None, measured.level, measured.n, method)
    centre = math.log(estimate / samples)
    low, high = np.clip(ends(-logs, measured.level), centre - _LARGEST, centre + _LARGEST)
    tested = "held-out error" if candidate.tests else "untested"
    return Interval(
        estimate,
        samples * math.exp(low),
        samples * math.exp(high),
        measured.level,
        measured.n,
        f"model ({measured.method}), {tested}",
    )


def speedup_of(curve: Curve, rate: Interval) -> Interval | None:
    """Return S: the rate by the base's.

    Both are taken to err independently. Where they were measured in the same blocks, what slows a
    block down cancels: then the interval is too wide rather than too narrow.
    """
    if not curve.base_rates:
        return None
    base = geometric_interval(curve.base_rates, rate.level)
    estimate = rate.estimate / base.estimate
    if rate.low is None or rate.high is None:
        return replace(rate, estimate=estimate)
    up = own_up = math.log(rate.high / rate.estimate)
    down = own_down = math.log(rate.estimate / rate.low)
    if base.low is not None and base.high is not None and base.low > 0:
        half = math.log(base.high / base.low) / 2
        up, down = math.hypot(own_up, half), math.hypot(own_down, half)
    return replace(
        rate, estimate=estimate, low=estimate * math.exp(-down), high=estimate * math.exp(up)
    )


def epoch_of(curve: Curve, rate: Interval) -> Interval:
    """Return an epoch's time in seconds: its training samples by the rate."""
    samples = _epoch_samples(curve)
    return replace(
        rate,
        estimate=samples / rate.estimate,
        low=None if rate.high is None else samples / rate.high,
        high=None if rate.low is None else samples / rate.low,
    )


def _step_samples(curve: Curve, n: int) -> int:
    return curve.batch * n if curve.scaling == "weak" else curve.batch


def _epoch_samples(curve: Curve) -> float:
    """Return the training samples of an epoch, as records have them."""
    one = curve.points[0].launches[0]
    return round(one.epoch_s * one.throughput_samples_per_s)
