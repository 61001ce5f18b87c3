"""What a prediction is made of: plain frozen data, for text, JSON and figures alike."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.models.api import Parameter
from harness.analysis.models.selection import HeldOut, LeftOut
from harness.stats import Interval


@dataclass(frozen=True)
class Measured:
    """A point of the curve."""

    world_size: int
    placement: str
    throughput_samples_per_s: Interval


@dataclass(frozen=True)
class Prediction:
    """One asked device count. What could not be predicted has a reason, and no numbers."""

    world_size: int
    placement: str  # devices of each node
    nodes: int
    times_largest: float  # N / the largest measured N: extrapolated beyond 1
    extrapolated: bool  # beyond the largest measured N, nodes, or devices of a node
    model: str | None
    throughput_samples_per_s: Interval | None
    speedup: Interval | None
    efficiency: Interval | None
    epoch_s: Interval | None
    term: str | None  # of the model's parts, the one that changes most from the largest measured N
    assumption: str | None  # what that part takes for granted
    refused: str | None


@dataclass(frozen=True)
class Tried:
    """A model of the curve: how it did on what was held out, and what was fitted to all of it."""

    name: str
    formula: str
    parameters: tuple[Parameter, ...]
    tests: tuple[HeldOut, ...]
    log_error: float | None  # root mean square of ln(predicted / measured); None untested
    untested: str | None
    misfit: float  # root mean square of ln(model / measured) over the points that it was fitted to
    notes: tuple[str, ...]


@dataclass(frozen=True)
class LinePoint:
    """One place on a model's line."""

    world_size: int
    placement: str
    throughput_samples_per_s: float
    low: float | None  # of a prediction's interval
    high: float | None


@dataclass(frozen=True)
class Line:
    """A model's throughput against N, over what was measured and what was asked for."""

    model: str
    points: tuple[LinePoint, ...]


@dataclass(frozen=True)
class CurvePrediction:
    """What a curve's models say of other device counts; ``refused`` where they can say nothing."""

    label: str
    title: str  # workload, framework, kind of scaling, device
    scaling: str
    batch_text: str
    base: str | None
    measured: tuple[Measured, ...]
    held_out: int | None  # the largest N
    predictions: tuple[Prediction, ...]
    models: tuple[Tried, ...]  # the chosen one first
    alike: tuple[str, ...]  # models that the held-out point cannot tell from the chosen one
    left_out: tuple[LeftOut, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    refused: str | None
