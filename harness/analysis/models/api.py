"""What every scaling model is: fitted to a curve's launches, it gives a step's time at any N."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.analysis.scaling import Curve, Point
from harness.stats import Interval


@dataclass(frozen=True)
class Network:
    """What joins nodes, where the user gives it: one message's latency, one link's bandwidth."""

    latency_s: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True)
class Place:
    """Where a prediction is asked for: devices of each node, e.g. ``(8, 8)`` or ``(8, 2)``."""

    placement: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Return N."""
        return sum(self.placement)

    @property
    def nodes(self) -> int:
        """Return how many nodes take part."""
        return len(self.placement)

    @classmethod
    def of(cls, point: Point) -> Place:
        """Return where a measured point was."""
        return cls(tuple(map(int, point.placement.split("+"))))


@dataclass(frozen=True)
class Parameter:
    """One fitted or measured number of a model."""

    name: str  # "serial fraction"
    symbol: str  # "f"
    unit: str  # "s", "bytes/s", "" for a ratio
    interval: Interval
    meaning: str  # one line for a reader


@dataclass(frozen=True)
class Term:
    """One part of a predicted step: its time, and what it rests on."""

    name: str  # "compute", "jitter", "exposed all-reduce", "negotiation"
    time_s: float
    assumption: str  # what must hold at this N for it to be right


class Model(Protocol):
    """A model fitted to one curve.

    ``step_s`` is the expected time of one step in seconds, ``draws_s`` the same for each of
    ``count`` plausible sets of parameters (shape ``(count,)``, always the same for the same data),
    from which intervals come. ``terms`` sum to ``step_s``; their largest change against the largest
    measured place tells which assumption dominates a prediction. Both raise AnalysisError where the
    data cannot support a prediction at ``place`` and say what is needed.
    """

    @property
    def name(self) -> str:
        """Return e.g. ``amdahl``."""

    @property
    def formula(self) -> str:
        """Return the law in one line of text."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Return its parameters with their intervals."""

    @property
    def notes(self) -> Sequence[str]:
        """Return what a reader must know: what it leaves out, what could not be told."""

    def step_s(self, place: Place) -> float:
        """Return the expected time of a step."""

    def terms(self, place: Place) -> Sequence[Term]:
        """Return the parts of ``step_s``."""

    def draws_s(self, place: Place, count: int) -> NDArray[np.float64]:
        """Return the step for ``count`` plausible sets of parameters."""


class Fit(Protocol):
    """How a model is made: AnalysisError where ``curve`` has too little for it."""

    def __call__(self, curve: Curve) -> Model:
        """Return the model of a curve, or of one without its largest N (held out)."""
