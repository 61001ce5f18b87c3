"""What the closed laws share: a curve's throughput as a sum of non-negative parts, and its fit.

A law knows the device count alone: no network, no node, no batch. It speaks of one kind of scaling
only where it is a law of that kind. N = 1 trains without an all-reduce (Horovod registers no hooks
there), which no law knows either, so each is also fitted without that point: its name then ends in
``from 2``, and the error on held-out points says which of the two does better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from harness.analysis.models.api import Parameter, Place, Term
from harness.analysis.models.fit import nonnegative_log_fit
from harness.analysis.models.sample import DRAWS, Array, Sample, sample_of
from harness.analysis.points import Point
from harness.analysis.scaling import Curve
from harness.errors import AnalysisError
from harness.stats import LEVEL, Interval

FROM_2 = " from 2"


@dataclass(frozen=True)
class Part:
    """One coefficient's share of a step: what it is called, and what it takes for granted."""

    name: str
    assumption: str


@dataclass(frozen=True)
class Quantity:
    """A parameter as a function of the coefficients: (d, p) and the declared batch to (d,)."""

    name: str
    symbol: str
    unit: str
    meaning: str
    value: Callable[[Array, float], Array]


@dataclass(frozen=True)
class Law:
    """A law: throughput (or its reciprocal) is ``basis(N) @ β`` with β ≥ 0.

    ``basis`` maps device counts (k,) to (k, p); ``of_rate`` says whether the sum is samples/s or
    seconds a sample. ``step_parts`` maps (N, β, samples a step) to the parts of a step's time.
    """

    name: str
    formula: str
    scalings: tuple[str, ...]
    refusal: str  # said where a curve's kind of scaling is another
    of_rate: bool
    basis: Callable[[Array], Array]
    step_parts: Callable[[float, Array, float], Sequence[float]]
    parts: tuple[Part, ...]
    quantities: tuple[Quantity, ...]
    at_bounds: Callable[[Array], Sequence[str]]  # what β says where a part of it is zero


@dataclass(frozen=True, eq=False)
class LawModel:
    """A law fitted to a curve: a ``Model``."""

    law: Law
    name: str
    sample: Sample
    beta: Array  # (p,)
    batch: int  # declared: of a rank (weak) or of all ranks (strong)
    weak: bool
    nodes: int  # most nodes of a point that speaks for the network between nodes
    level: float
    extra_notes: tuple[str, ...] = ()

    @property
    def formula(self) -> str:
        """Return the law in one line of text."""
        return self.law.formula

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Return its parameters; their intervals are of refits to plausible means of the points."""
        draws = _coefficients(self, DRAWS)
        return tuple(
            Parameter(one.name, one.symbol, one.unit, self._interval(one, draws), one.meaning)
            for one in self.law.quantities
            if np.isfinite(one.value(self.beta[None, :], self.batch)).all()
        )

    @property
    def notes(self) -> Sequence[str]:
        """Return what a reader must know."""
        own = (self.sample.note,) if self.sample.note else ()
        return (*self.extra_notes, *self.law.at_bounds(self.beta), *own)

    def step_s(self, place: Place) -> float:
        """Return the expected time of a step; AnalysisError across nodes that were not measured."""
        self._check(place)
        return float(self._steps(self.beta[None, :], place)[0])

    def terms(self, place: Place) -> Sequence[Term]:
        """Return the parts of ``step_s``."""
        self._check(place)
        n = place.world_size
        times = self.law.step_parts(n, self.beta, self._samples(n))
        return tuple(
            Term(part.name, float(time_s), part.assumption)
            for part, time_s in zip(self.law.parts, times, strict=True)
        )

    def draws_s(self, place: Place, count: int) -> Array:
        """Return the step for ``count`` plausible sets of parameters."""
        self._check(place)
        return self._steps(_coefficients(self, count), place)

    def reaching(self, nodes: int) -> LawModel:
        """Return the same model for places of up to any number of nodes, if ``nodes`` is over 1.

        A model that was fitted without the largest N may be asked for it: that other points of
        its curve cross nodes is what tells how wrong it is there.
        """
        return replace(self, nodes=max(self.nodes, nodes))

    def _steps(self, betas: Array, place: Place) -> Array:
        n = place.world_size
        sums = betas @ self.law.basis(np.array([float(n)]))[0]
        found: Array = self._samples(n) / sums if self.law.of_rate else self._samples(n) * sums
        return found

    def _samples(self, n: int) -> float:
        return float(self.batch * n if self.weak else self.batch)

    def _check(self, place: Place) -> None:
        if place.world_size == 1 and self.name.endswith(FROM_2):
            raise AnalysisError(f"{self.name} is of steps with an all-reduce, and N = 1 has none")
        if place.nodes > 1 and self.nodes < 2:
            raise AnalysisError(
                f"{self.law.name} knows nothing of networks, and all its points are on one node: "
                "measure on two nodes or more"
            )

    def _interval(self, one: Quantity, draws: Array) -> Interval:
        estimate = float(one.value(self.beta[None, :], self.batch)[0])
        if not self.sample.freedom:
            return Interval(estimate, None, None, self.level, self.sample.units, self.sample.method)
        tail = 50 * (1 - self.level)
        low, high = np.percentile(
            one.value(draws, self.batch), [tail, 100 - tail], method="nearest"
        )
        return Interval(
            estimate, float(low), float(high), self.level, self.sample.units, self.sample.method
        )


@lru_cache(maxsize=64)
def _coefficients(model: LawModel, count: int) -> Array:
    """Refit the law to plausible means of the points, (count, p)."""
    if not model.sample.freedom:
        return np.repeat(model.beta[None, :], count, axis=0)
    sign = 1.0 if model.law.of_rate else -1.0
    basis = model.law.basis(model.sample.counts)
    return nonnegative_log_fit(basis, sign * model.sample.draws(count), near=model.beta)


def fit_law(law: Law, curve: Curve, *, from_2: bool = False) -> LawModel:
    """Fit a law to a curve, without its N = 1 where ``from_2``.

    Raises AnalysisError where the law is of another kind of scaling, or the curve has fewer
    different device counts than the law has parameters.
    """
    if curve.scaling not in law.scalings:
        raise AnalysisError(law.refusal)
    points = [point for point in curve.points if not (from_2 and point.world_size == 1)]
    counts = {point.world_size for point in points}
    if len(counts) < len(law.parts):
        raise AnalysisError(
            f"its {len(law.parts)} parameters need as many device counts, "
            f"{'without N = 1 ' if from_2 else ''}there are {len(counts)}"
        )
    sample = sample_of(points)
    sign = 1.0 if law.of_rate else -1.0
    beta = nonnegative_log_fit(law.basis(sample.counts), sign * sample.logs[None, :])[0]
    return LawModel(
        law=law,
        name=f"{law.name}{FROM_2}" if from_2 else law.name,
        sample=sample,
        beta=beta,
        batch=curve.batch,
        weak=curve.scaling == "weak",
        nodes=max(point.nodes for point in points),
        level=_level(points),
        extra_notes=tuple(_notes(curve, points, from_2)),
    )


def _level(points: Sequence[Point]) -> float:
    return points[0].throughput_samples_per_s.level if points else LEVEL


def _notes(curve: Curve, points: Sequence[Point], from_2: bool) -> Sequence[str]:
    notes = []
    if from_2:
        notes.append("its one device is the law's, drawn back from N ≥ 2; N = 1 is not in the fit")
    elif curve.engine != "none" and any(point.world_size == 1 for point in points):
        notes.append("N = 1 is in the fit, though nothing is all-reduced there")
    if any(point.sequential for point in points):
        notes.append("sequential: intervals are somewhat too narrow")
    return notes
