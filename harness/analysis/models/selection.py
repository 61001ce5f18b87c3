"""Which model to believe: each is fitted without the largest N and asked for it.

**Rule.** A curve needs three different device counts, so that two are left to fit when the largest
is held out; from N = 1 and 2 nothing can be told of how a step depends on N. A model takes part if
it can be fitted without the largest N. The one with the least error there is chosen (root mean
square of ln(predicted / measured), where several placements have that N); of equal ones, the one
with fewer parameters. Models whose error differs from the least one by less than half of the
measured interval cannot be told from it, and are named.

**Interval of a prediction**, in logarithms of the step, where the parts add in quadrature:

1. the model's parameters: its draws, which are Student's t over blocks;
2. how far the model is from the curve's own points: root mean square of their residuals;
3. the held-out error e: a standard error of √(e² + s²) · g·(g + 1). s is the standard error of the
   measured point, so that an error that is nought by luck is not believed. g is the distance in
   ln N from the largest measured N, by the distance from the largest N of the fit to the one held
   out (1 step); 0 within the data;
4. the models that cannot be told from the chosen one: the largest ln ratio of their predictions to
   its own, as a standard error.

Why g·(g + 1): a law that fits what it saw and is wrong by e one step farther has a wrong curvature
in ln N; such an error grows as 1, 3, 6 … = g·(g + 1)/2. Twice that, because e is one number, and
the least of several models'. The factor was set by simulation and is no theorem:
of 300 curves up to N = 8, 16 or 32 in 3 to 5 blocks, with compute and costs that grow with N, its
logarithm or otherwise, 95 % intervals at 2, 4 and 8 times the largest N held the truth in 95, 94
and 93 % (up to N = 8 alone in 90, 88 and 87 %; with costs linear in N in 86, 80 and 80 %), and
their ends were 1.3, 2.2 and 4.5 times apart in the median.
What this cannot know: a bend farther out (a switch, a second rail, another algorithm of the
library) is in no point of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.analysis.models.api import Model, Place
from harness.analysis.models.laws import LawModel
from harness.analysis.models.registry import Sources, fit, names_for
from harness.analysis.models.sample import DRAWS, Array, normal_draws
from harness.analysis.points import Point
from harness.analysis.scaling import Curve
from harness.errors import AnalysisError, HarnessError
from harness.stats import Interval, t_quantile

MIN_COUNTS = 3
_LEAST = 1e-6
_EQUAL_DIGITS = 4  # of held-out errors: 0.01 %


@dataclass(frozen=True)
class HeldOut:
    """What a model that had not seen a point said of it. Rates are in samples/s."""

    world_size: int
    placement: str
    predicted: float
    low: float | None  # of the model's own interval; None where nothing tells its scatter
    high: float | None
    measured: float

    @property
    def error(self) -> float:
        """Return predicted / measured − 1."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Say whether what was measured lies in the model's own interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model of the whole curve, and how it did on what was held out."""

    name: str
    model: Model
    tests: tuple[HeldOut, ...]
    untested: str | None  # why there are none
    misfit: float  # root mean square of ln(model / measured) over the points it is of

    @property
    def log_error(self) -> float:
        """Return the root mean square of the held-out ln(predicted / measured); inf untested."""
        if not self.tests:
            return math.inf
        squares = [math.log(test.predicted / test.measured) ** 2 for test in self.tests]
        return math.sqrt(sum(squares) / len(squares))


@dataclass(frozen=True)
class LeftOut:
    """A model that could not be had for a curve, and why."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Selection:
    """The models of a curve, the best one first."""

    curve: Curve
    held_out: int  # the largest N
    before: int  # the largest N without it
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def alike(self) -> tuple[Candidate, ...]:
        """Return the tested models that cannot be told from the best one."""
        best = self.candidates[0]
        margin = _half_width(self.curve, self.held_out)
        return tuple(
            one
            for one in self.candidates[1:]
            if best.tests and one.tests and one.log_error - best.log_error <= margin
        )

    def growth(self, n: int) -> float:
        """Return g·(g + 1), where g held-out steps in ln N lie from the largest measured N to n."""
        steps = max(0.0, math.log(n / self.held_out) / math.log(self.held_out / self.before))
        return steps * (steps + 1)


def select(curve: Curve, sources: Sources) -> Selection:
    """Fit every model to a curve, and to the curve without its largest N.

    Raises AnalysisError where fewer than three device counts were measured, or no model is left.
    """
    counts = sorted({point.world_size for point in curve.points})
    if len(counts) < MIN_COUNTS:
        raise AnalysisError(too_few(counts))
    without = replace(
        curve, points=tuple(p for p in curve.points if p.world_size < counts[-1])
    )  # fmt: skip
    found: list[Candidate] = []
    left: list[LeftOut] = []
    for name in names_for(curve):
        made = _candidate(name, curve, without, sources)
        if isinstance(made, Candidate):
            found.append(made)
        else:
            left.append(made)
    if not found:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in left)
        raise AnalysisError(f"no model can be fitted ({reasons})")
    ranked = sorted(
        found, key=lambda one: (round(one.log_error, _EQUAL_DIGITS), len(one.model.parameters))
    )
    return Selection(curve, counts[-1], counts[-2], tuple(ranked), tuple(left))


def too_few(counts: Sequence[int]) -> str:
    """Say why a curve with these device counts predicts nothing."""
    there = " and ".join(map(str, counts))
    return (
        f"N = {there} cannot show how a step depends on N: measure at least {MIN_COUNTS} device "
        "counts (better five), the largest of which is held out as a test"
    )


def log_draws(selection: Selection, candidate: Candidate, place: Place) -> Array | None:
    """Return plausible ln of a step's time at ``place``, (DRAWS,), all parts of its error in them.

    None where nothing tells an error: one block, and no held-out point.
    """
    step_s = candidate.model.step_s(place)
    # A draw of many parts can be none at all; what is left of it then is of no consequence.
    logs = np.log(np.maximum(candidate.model.draws_s(place, DRAWS), _LEAST * step_s))
    extra = _model_error(selection, candidate, place)
    if extra is None and float(np.ptp(logs)) == 0.0:
        return None
    found: Array = logs + (extra or 0.0) * normal_draws(DRAWS)
    return found


def _model_error(selection: Selection, candidate: Candidate, place: Place) -> float | None:
    """Return the standard error, in ln, that a model has besides its parameters' (parts 2 to 4)."""
    if not candidate.tests:
        return None
    point_error = _standard_error(selection.curve, selection.held_out)
    tested = math.hypot(candidate.log_error, point_error) * selection.growth(place.world_size)
    spread = 0.0
    if candidate is selection.candidates[0]:
        own = math.log(candidate.model.step_s(place))
        spread = max(
            (abs(math.log(step_s) - own) for one in selection.alike
             if (step_s := _step_or_none(one.model, place)) is not None),
            default=0.0,
        )  # fmt: skip
    return math.hypot(candidate.misfit, tested, spread)


def _step_or_none(model: Model, place: Place) -> float | None:
    try:
        return model.step_s(place)
    except AnalysisError:
        return None


def _candidate(name: str, curve: Curve, without: Curve, sources: Sources) -> Candidate | LeftOut:
    try:
        model = fit(name, curve, sources)
    except HarnessError as error:
        return LeftOut(name, str(error))
    try:
        blind = fit(name, without, sources)
    except HarnessError as error:
        return LeftOut(name, f"cannot be tested without the largest N: {error}")
    if isinstance(blind, LawModel):
        # That a law misses a step from one node to two is for the test to show.
        blind = blind.reaching(max(point.nodes for point in curve.points))
    largest = max(point.world_size for point in curve.points)
    held = [point for point in curve.points if point.world_size == largest]
    try:
        tests = tuple(_test(blind, point) for point in held)
        untested = None
    except AnalysisError as error:
        tests, untested = (), str(error)
    return Candidate(name, model, tests, untested, _misfit(model, curve))


def _test(blind: Model, point: Point) -> HeldOut:
    place = Place.of(point)
    samples = point.world_size * point.rank_batch
    draws = samples / blind.draws_s(place, DRAWS)
    level = point.throughput_samples_per_s.level
    low, high = ends(draws, level) if float(np.ptp(draws)) > 0 else (None, None)
    return HeldOut(
        world_size=point.world_size,
        placement=point.placement,
        predicted=samples / blind.step_s(place),
        low=low,
        high=high,
        measured=point.throughput_samples_per_s.estimate,
    )


def ends(draws: Array, level: float) -> tuple[float, float]:
    """Return the ends between which ``level`` of the draws lie."""
    tail = 50 * (1 - level)
    low, high = np.percentile(draws, [tail, 100 - tail])
    return float(low), float(high)


def _misfit(model: Model, curve: Curve) -> float:
    """Return how far a model is from the points that it is of: N = 1 is so only of some laws."""
    alone = isinstance(model, LawModel) and 1.0 in model.sample.counts
    logs = []
    for point in curve.points if alone else [p for p in curve.points if p.world_size > 1]:
        step_s = _step_or_none(model, Place.of(point))
        if step_s is not None:
            rate = point.world_size * point.rank_batch / step_s
            logs.append(math.log(rate / point.throughput_samples_per_s.estimate))
    return math.sqrt(sum(one**2 for one in logs) / len(logs)) if logs else 0.0


def _half_width(curve: Curve, n: int) -> float:
    """Return half of the measured interval at N = n, in ln; 0 without one."""
    found = _interval(curve, n)
    if found.low is None or found.high is None or not found.low > 0:
        return 0.0
    return math.log(found.high / found.low) / 2


def _standard_error(curve: Curve, n: int) -> float:
    """Return the standard error of the measured throughput at N = n, in ln; 0 without one."""
    found = _interval(curve, n)
    half = _half_width(curve, n)
    return half / t_quantile(1 - (1 - found.level) / 2, found.n - 1) if half else 0.0


def _interval(curve: Curve, n: int) -> Interval:
    return max(
        (point.throughput_samples_per_s for point in curve.points if point.world_size == n),
        key=lambda one: one.relative_half_width or 0.0,
    )
