"""The rule by which one of several alike is called slow; pure.

Each has repeated times; x is the logarithm of their median and e its standard error, from the
median absolute deviation (MAD) of the repeats: 1.2533 · 1.4826 · MAD / √repeats. Of three or more,
one is slow where ::

    x − median(all x) > max(log(1 + LEAST), SPREADS · √(s² + e² + median(e)²))

and s = 1.4826 · MAD of all x, at most MOST, is how much they differ by nature (the MAD of three is
a matter of chance). Median and MAD hold while fewer than half are ill. Of two the slower one is
named where they differ by more than ``max(log(1 + LEAST), SPREADS · √(e₁² + e₂²))``, and nobody can
say which one is ill. One is never slow.

A ratio below 1 + LEAST is nobody's fault however clear it is: GPUs of one model differ by a few per
cent. What is noisy has to be slower by more, rather than be named by chance. Whoever is found is
measured a second time, and named only where both looks find it (``slow_in_all``).

Simulated with 12 repeats and nothing ill (2,000 sets of 2, 3 and 8; 400 of 64), in % of the sets in
which somebody is named by one look, and by both. The nodes differ by 2 % by nature.

===============================  =========  ==========  =========  ========
noise of a repeat                2          3           8          64
===============================  =========  ==========  =========  ========
3 %, white                       0.3, 0.05  0, 0        0, 0       0, 0
10 %, white                      0.5, 0.05  0.05, 0     0, 0       0, 0
10 %, AR(1) with ρ = 0.7         11, 0.8    1.5, 0      0.5, 0     1.3, 0
30 %, AR(1) with ρ = 0.7         9.1, 0.5   3.2, 0.1    5.9, 0     35, 0
===============================  =========  ==========  =========  ========

One that takes 1.5 times as long is found by both looks, of 2, 3 and 8, in 100 % of the sets with
3 % of noise, in 92 to 100 % with 10 %, and in 1 to 4 % with 30 %; 1.2 times as long in 100, 47 and
89 % with 3 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 0.10
SPREADS = 4.0
MOST = 0.05
_TO_SIGMA = 1.4826  # MAD of a normal distribution -> its standard deviation
_OF_MEDIAN = 1.2533  # standard error of a median / that of a mean, normal distribution


@dataclass(frozen=True)
class Slow:
    """One that is slow."""

    place: int
    ratio: float  # its time / the median's; of two, / the other's


def slow(times_s: Sequence[Sequence[float]], least: float = LEAST) -> tuple[Slow, ...]:
    """Return which of ``times_s`` (repeats of each, above 0) are slow, by the rule above."""
    if len(times_s) < 2:
        return ()
    x = np.array([log_median(values) for values in times_s])
    e = np.array([error(values) for values in times_s])
    if len(x) == 2:
        worse = int(x[1] > x[0])
        beyond = [x[worse] - x[1 - worse]]
        limits = [limit(least, float(np.hypot(*e)))]
        places = [worse]
    else:
        beyond = list(x - np.median(x))
        s = min(spread(x), MOST)
        limits = [limit(least, math.sqrt(s**2 + one**2 + np.median(e) ** 2)) for one in e]
        places = list(range(len(x)))
    return tuple(
        Slow(place, math.exp(much))
        for place, much, most in zip(places, beyond, limits, strict=True)
        if much > most
    )


def slow_in_all(
    looks: Sequence[Sequence[Sequence[float]]], least: float = LEAST
) -> tuple[Slow, ...]:
    """Return who is slow in every look, with the mildest ratio; a look is what ``slow`` takes."""
    found = [{one.place: one.ratio for one in slow(look, least)} for look in looks]
    everywhere = set.intersection(*map(set, found)) if found else set()
    return tuple(Slow(place, min(look[place] for look in found)) for place in sorted(everywhere))


def limit(least: float, sigma: float) -> float:
    """Return the difference of logarithms from which on something is slow."""
    return max(math.log1p(least), SPREADS * sigma)


def log_median(values: Sequence[float]) -> float:
    """Return the logarithm of the median."""
    return math.log(float(np.median(values)))


def spread(values: Sequence[float] | np.ndarray) -> float:
    """Return a robust standard deviation."""
    array = np.asarray(values, dtype=float)
    return _TO_SIGMA * float(np.median(np.abs(array - np.median(array))))


def error(values: Sequence[float]) -> float:
    """Return the standard error of the logarithm of the median; 0 of a single one."""
    return _OF_MEDIAN * spread(np.log(values)) / math.sqrt(len(values))
