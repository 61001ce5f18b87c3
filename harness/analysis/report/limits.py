"""What a report of many records shows: few enough curves to read, and a sentence on the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis.facets import facets
from harness.analysis.report.answer import scaled_points
from harness.analysis.report.document import counted
from harness.analysis.results import Results
from harness.analysis.scaling import Curve, Point

CURVES = 12  # of one facet; more in one figure cannot be told apart, or are as many panels
FEW = 5  # are shown however many launches they have
LAUNCHES = 1000  # of one facet, each a mark in every figure: drawing them is what takes the time
FACETS = 6
POINTS = 60  # of one curve
TRAININGS = 60
_ELSEWHERE = "every launch is a row of table.csv in the results folder (hvdscale collect)"


@dataclass(frozen=True)
class Shown:
    """The part of the results that tables and figures show, and what is left out of them."""

    results: Results
    notes: tuple[str, ...]  # sentences; none where all is shown


def shown(results: Results) -> Shown:
    """Choose what tables and figures show; the answer, the advice and the like are of all."""
    groups = facets(results.curves)
    chosen = [c for group in groups[:FACETS] for c in _spread(group.curves, _extremes(results))]
    kept = tuple(replace(curve, points=_ends(curve)) for curve in chosen)
    notes = []
    if len(kept) < len(results.curves):
        notes.append(
            f"Tables and figures show {len(kept):,} of {counted(len(results.curves), 'curve')}: "
            "those with the best and the worst efficiency, and others evenly from the rest; "
            f"{_ELSEWHERE}."
        )
    cut = sum(len(c.points) for c in chosen) - sum(len(c.points) for c in kept)
    if cut:
        notes.append(
            f"{counted(cut, 'point')} of the shown curves {'is' if cut == 1 else 'are'} left out, "
            f"in the middle of their device counts; {_ELSEWHERE}."
        )
    trained = results.trainings[:TRAININGS]
    if len(trained) < len(results.trainings):
        notes.append(
            f"The first {TRAININGS} of {len(results.trainings):,} trained points are shown; "
            f"{_ELSEWHERE}."
        )
    return Shown(replace(results, curves=kept, trainings=trained), tuple(notes))


def _extremes(results: Results) -> set[int]:
    """Return the identities of the curves that the answer names."""
    points = scaled_points(results.curves)
    return {id(curve) for curve, _ in (*points[:1], *points[-1:])}


def _spread(curves: Sequence[Curve], always: set[int]) -> list[Curve]:
    """Return a few, in their order, spread evenly over them: ``CURVES`` or ``LAUNCHES``."""
    launches = sum(len(point.launches) for curve in curves for point in curve.points)
    each = launches / len(curves)
    most = max(FEW, min(CURVES, int(LAUNCHES / each)))
    if len(curves) <= most:
        return list(curves)
    wanted = [i for i, curve in enumerate(curves) if id(curve) in always]
    room = most - len(wanted)
    even = [round(k * (len(curves) - 1) / (room - 1)) for k in range(room)]
    return [curves[i] for i in sorted({*wanted, *even})]


def _ends(curve: Curve) -> tuple[Point, ...]:
    points = curve.points
    if len(points) <= POINTS:
        return points
    return points[: POINTS // 2] + points[-POINTS // 2 :]
