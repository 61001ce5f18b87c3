"""Which points are worst, by one rule."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.diagnose.neighbours import Neighbours
from harness.analysis.diagnose.types import Ranking
from harness.analysis.facets import is_base_point
from harness.analysis.points import Point
from harness.analysis.scaling import Curve

BY_EFFICIENCY = "lowest efficiency"
BY_SHARE = "largest share of the step outside forward and backward, or not growing with the batch"
BOTH = f"{BY_EFFICIENCY}; where there is no base, {BY_SHARE}"

Place = tuple[Curve, Point]


def ranked(curves: Sequence[Curve], neighbours: Neighbours) -> tuple[list[Place], Ranking]:
    """Return the points, the worst first, and the rule.

    A point keeps E of its step; without a base (forward + backward − what of them does not grow
    with the batch) / step. Bases are left out, their E being 1 by definition, unless there is
    nothing else. Points that have neither base nor phases come last.
    """
    places = [(curve, point) for curve in curves for point in curve.points]
    others = [(c, p) for c, p in places if not is_base_point(c, p)]
    places = others or places
    kept = [(_kept(curve, point, neighbours), curve, point) for curve, point in places]
    known = [one[0] for one in kept if one[0] is not None]
    order = sorted(range(len(kept)), key=lambda i: (kept[i][0] is None, kept[i][0] or 0.0, i))
    based = [c.base is not None and p.efficiency is not None and bool(others) for c, p in places]
    rule = BY_EFFICIENCY if all(based) else BOTH if any(based) else BY_SHARE
    ranking = Ranking(
        rule=rule,
        points=len(places),
        over_half=sum(share < 0.5 for share in known),
        over_tenth=sum(share < 0.9 for share in known),
        unranked=len(places) - len(known),
    )
    return [places[i] for i in order], ranking


def _kept(curve: Curve, point: Point, neighbours: Neighbours) -> float | None:
    if point.efficiency is not None and not is_base_point(curve, point):
        return point.efficiency.estimate
    if point.forward_s is None or point.backward_s is None:
        return None
    compute = point.forward_s.estimate + point.backward_s.estimate
    other = neighbours.other_batch(curve, point)
    if other is not None and other.forward_s is not None and other.backward_s is not None:
        theirs = other.forward_s.estimate + other.backward_s.estimate
        slope = (theirs - compute) / (other.rank_batch - point.rank_batch)
        compute = min(compute, point.rank_batch * max(0.0, slope))
    return compute / point.step_s.estimate
