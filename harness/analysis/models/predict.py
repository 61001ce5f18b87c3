"""Predictions of a sweep's curves at other device counts, each by the model that did best.

How models are chosen and what an interval has in it: ``selection``. A place is packed: nodes of
``devices_per_node`` are filled one after the other. Nothing is predicted from fewer than three
device counts, nor onto several nodes by a law whose points are all on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.analysis.apart import apart_text
from harness.analysis.facets import Facet
from harness.analysis.models.api import Model, Network, Place
from harness.analysis.models.prediction import (
    CurvePrediction,
    Line,
    LinePoint,
    Measured,
    Prediction,
    Tried,
)
from harness.analysis.models.rates import epoch_of, rate_at, speedup_of
from harness.analysis.models.registry import Sources
from harness.analysis.models.selection import Candidate, Selection, select
from harness.analysis.scaling import Curve
from harness.errors import AnalysisError, ConfigError
from harness.stats import SEQUENTIAL_NOTE

if TYPE_CHECKING:
    from harness.analysis.results import Results
    from harness.collectives.record import CollectivesRecord

_DOUBLINGS = 3  # asked for where no count is: twice, four and eight times the largest measured
_MAX_DEVICES = 1_000_000


def predict(
    results: Results,
    devices: Sequence[int],
    *,
    devices_per_node: int | None = None,
    network: Network | None = None,
    allreduce: CollectivesRecord | None = None,
) -> tuple[CurvePrediction, ...]:
    """Predict every curve of an engine that distributes, at each of ``devices``.

    Without ``devices``: at twice, four and eight times a curve's largest N. ``devices_per_node``
    defaults to the most that a node had in the curve; where neither is given and nothing is known
    of what lies between nodes, to one node that takes them all. A curve, or a count of it, that the
    data cannot support has a reason in place of numbers. Raises ConfigError on counts that are
    none, AnalysisError where there is no such curve.
    """
    wrong = [n for n in (*devices, devices_per_node or 1) if not 1 <= n <= _MAX_DEVICES]
    if wrong:
        raise ConfigError(f"a device count is from 1 to {_MAX_DEVICES:,}, not {wrong[0]}")
    found = [c for c in results.require_curves("a prediction") if c.engine != "none"]
    if not found:
        raise AnalysisError(
            "a prediction: all launches are of one device alone (engine none); measure Horovod or "
            "DDP at three device counts or more"
        )
    sources = Sources(results, network, allreduce)
    return tuple(_curve(curve, devices, devices_per_node, sources) for curve in found)


def packed(n: int, devices_per_node: int) -> Place:
    """Return the place of ``n`` devices, nodes being filled one after the other."""
    full, rest = divmod(n, devices_per_node)
    return Place((devices_per_node,) * full + ((rest,) if rest else ()))


def place_text(placement: Sequence[int]) -> str:
    """Return devices of each node, equal ones counted: ``8+8+2`` as ``2x8+2``."""
    groups: list[list[int]] = []
    for devices in placement:
        if groups and groups[-1][0] == devices:
            groups[-1][1] += 1
        else:
            groups.append([devices, 1])
    return "+".join(f"{k}x{d}" if k > 1 else str(d) for d, k in groups)


def _curve(
    curve: Curve, devices: Sequence[int], devices_per_node: int | None, sources: Sources
) -> CurvePrediction:
    try:
        selection = select(curve, sources)
    except AnalysisError as error:
        return _described(curve, refused=str(error))
    wanted = sorted(set(devices)) or [selection.held_out * 2**k for k in range(1, _DOUBLINGS + 1)]
    node = devices_per_node or _node(curve)
    if not devices and devices_per_node is None and not _joined(curve, sources):
        node = wanted[-1]  # all that can be said something of: a larger node; the notes say so
    places = [packed(n, node) for n in wanted]
    made = _described(curve, refused=None)
    return replace(
        made,
        held_out=selection.held_out,
        predictions=tuple(_prediction(selection, place) for place in places),
        models=tuple(_tried(one) for one in selection.candidates),
        alike=tuple(one.name for one in selection.alike),
        left_out=selection.left_out,
        lines=tuple(_lines(selection, places, node)),
        notes=(*made.notes, *_notes(selection, places)),
    )


def _joined(curve: Curve, sources: Sources) -> bool:
    """Say whether anything is known of what lies between nodes."""
    return sources.network is not None or any(point.nodes > 1 for point in curve.points)


def _described(curve: Curve, refused: str | None) -> CurvePrediction:
    notes = [f"unlike launches mixed: {curve.unlike}"] if curve.unlike else []
    if any(point.sequential for point in curve.points):
        notes.append(SEQUENTIAL_NOTE)
    if curve.base is None:
        notes.append(f"no speedup: {curve.note}")
    apart = apart_text(curve)
    if apart:
        notes.append(f"S and E: {apart}")
    return CurvePrediction(
        label=curve.label,
        title=Facet((curve,)).title,
        scaling=curve.scaling,
        batch_text=curve.batch_text,
        base=None if curve.base is None else str(curve.base),
        measured=tuple(
            Measured(p.world_size, p.placement, p.throughput_samples_per_s) for p in curve.points
        ),
        held_out=None,
        predictions=(),
        models=(),
        alike=(),
        left_out=(),
        lines=(),
        notes=tuple(notes),
        refused=refused,
    )


def _prediction(selection: Selection, place: Place) -> Prediction:
    curve, n = selection.curve, place.world_size
    made = Prediction(
        world_size=n,
        placement=place_text(place.placement),
        nodes=place.nodes,
        times_largest=n / selection.held_out,
        extrapolated=_extrapolated(selection, place),
        model=None, throughput_samples_per_s=None, speedup=None, efficiency=None, epoch_s=None,
        term=None, assumption=None, refused=None,
    )  # fmt: skip
    if curve.scaling == "strong" and curve.batch % n:
        return replace(made, refused=f"no divisor of the global batch {curve.batch}")
    found = _first_able(selection, place)
    if isinstance(found, str):
        return replace(made, refused=found)
    rate = rate_at(selection, found, place)
    speedup = speedup_of(curve, rate)
    term, assumption = _dominant(found.model, place, _largest(selection))
    return replace(
        made,
        model=found.name,
        throughput_samples_per_s=rate,
        speedup=speedup,
        efficiency=speedup.scaled(curve.base.devices / n) if speedup and curve.base else None,
        epoch_s=epoch_of(curve, rate),
        term=term,
        assumption=assumption,
    )


def _first_able(selection: Selection, place: Place) -> Candidate | str:
    """Return the best model that can speak of a place, or why none can."""
    reasons = []
    for one in selection.candidates:
        try:
            one.model.step_s(place)
        except AnalysisError as error:
            reasons.append(str(error))
        else:
            return one
    lacking = max(p.nodes for p in selection.curve.points) < 2 <= place.nodes
    if lacking:
        return (
            "on several nodes, and all was measured on one, which says nothing of what is between "
            "nodes: measure on two, or give --inter-node-us and --inter-node-gbs; where one node "
            "holds more devices than were measured: --devices-per-node"
        )
    return "; ".join(dict.fromkeys(reasons))


def _dominant(model: Model, place: Place, largest: Place) -> tuple[str, str]:
    """Return the part that changes most from the largest measured place, and what it assumes."""
    before = {term.name: term.time_s for term in model.terms(largest)}
    most = max(
        model.terms(place),
        key=lambda term: (abs(term.time_s - before.get(term.name, 0.0)), term.time_s),
    )
    return most.name, most.assumption


def _largest(selection: Selection) -> Place:
    return Place.of(selection.curve.points[-1])


def _node(curve: Curve) -> int:
    return max(max(Place.of(point).placement) for point in curve.points)


def _extrapolated(selection: Selection, place: Place) -> bool:
    points = selection.curve.points
    return (
        place.world_size > selection.held_out
        or place.nodes > max(point.nodes for point in points)
        or max(place.placement) > _node(selection.curve)
    )


def _tried(one: Candidate) -> Tried:
    return Tried(
        name=one.name,
        formula=one.model.formula,
        parameters=tuple(one.model.parameters),
        tests=one.tests,
        log_error=one.log_error if one.tests else None,
        untested=one.untested,
        misfit=one.misfit,
        notes=tuple(one.model.notes),
    )


def _lines(selection: Selection, places: Sequence[Place], node: int) -> Iterator[Line]:
    """Yield each model's line through what was measured, what was asked for, and doublings."""
    measured = {p.world_size: Place.of(p) for p in selection.curve.points}
    last = max(place.world_size for place in places)
    doubled = [selection.held_out * 2**k for k in range(1, 40) if selection.held_out * 2**k < last]
    more = {n: packed(n, node) for n in doubled}
    every = measured | more | {place.world_size: place for place in places}
    for one in selection.candidates:
        points = [
            point
            for _, place in sorted(every.items())
            if (point := _line_point(selection, one, place)) is not None
        ]
        yield Line(one.name, tuple(points))


def _line_point(selection: Selection, one: Candidate, place: Place) -> LinePoint | None:
    n = place.world_size
    if selection.curve.scaling == "strong" and selection.curve.batch % n:
        return None
    try:
        rate = rate_at(selection, one, place)
    except AnalysisError:
        return None  # a model that cannot speak of a place has no line there
    return LinePoint(n, place_text(place.placement), rate.estimate, rate.low, rate.high)


def _notes(selection: Selection, places: Sequence[Place]) -> Iterator[str]:
    curve = selection.curve
    node, asked = _node(curve), max(max(place.placement) for place in places)
    if asked > node:
        yield f"a node of {asked} devices is taken; {node} at most were measured on one"
    smallest = min(point.rank_batch for point in curve.points)
    fitting = [place.world_size for place in places if curve.batch % place.world_size == 0]
    far = curve.batch // max(fitting, default=1)
    if curve.scaling == "strong" and far < smallest:
        yield (
            f"a rank's batch falls to {far}, {smallest} was the smallest measured: whether a "
            "sample takes as long in so small a batch was not"
        )
    on_several = [point.world_size for point in curve.points if point.nodes > 1]
    if on_several == [selection.held_out]:
        yield (
            "several nodes were measured at the held-out N alone: what each further node costs "
            "is told by that one point"
        )
