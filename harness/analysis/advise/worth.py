"""What is worth measuring next. Predictions are named here, and never recommended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.analysis.advise.choose import lower, upper
from harness.analysis.advise.types import Answer, Candidate, Goal
from harness.analysis.advise.words import spans_text
from harness.analysis.results import Results
from harness.analysis.scaling import Curve
from harness.analysis.texts import ratio_text
from harness.errors import AnalysisError

if TYPE_CHECKING:
    from harness.analysis.models.prediction import Prediction

_DOUBLINGS = 2  # of the device count, beyond the largest measured


def worth_measuring(answer: Answer, goal: Goal, sweeps: Sequence[Results]) -> str | None:
    """Name larger device counts where the best is the largest measured of its kind.

    With their predicted epoch time where a model can say one; None where nothing points to more
    devices.
    """
    best = answer.recommended or _fastest_too_late(answer, goal)
    found = None if best is None else _curve(best, sweeps)
    if best is None or found is None:
        return None
    results, curve = found
    largest = max(point.world_size for point in curve.points)
    if best.world_size < largest or curve.engine == "none":
        return None
    counts = [largest * 2**k for k in range(1, _DOUBLINGS + 1)]
    plain = f"N={largest} is the largest measured there; N={counts[0]} was not measured"
    if answer.cost_of != "an epoch":
        return plain
    told = [one for one in _predicted(results, curve, counts) if one.epoch_s is not None]
    fit = [one for one in told if _fits(one, goal)]
    if not told:
        return plain
    shown = (fit or told)[0]
    assert shown.epoch_s is not None
    efficiency = f", E {ratio_text(shown.efficiency)}" if shown.efficiency else ""
    hope = "" if fit else "; even so it would not keep to the limits"
    return (
        f"N={shown.world_size} ({shown.placement}), predicted, not measured: "
        f"{spans_text(shown.epoch_s)} an epoch{efficiency} (model {shown.model}){hope}"
    )


def _fastest_too_late(answer: Answer, goal: Goal) -> Candidate | None:
    """Return the fastest where nothing meets the deadline: more devices may."""
    if goal.deadline_s is None or not answer.candidates or not answer.comparable:
        return None
    best = min(answer.candidates, key=lambda one: upper(one.time_s))
    return best if upper(best.time_s) > goal.deadline_s else None


def _curve(best: Candidate, sweeps: Sequence[Results]) -> tuple[Results, Curve] | None:
    """Return the curve that a candidate is a point of; None where it is of several sweeps."""
    for results in sweeps:
        for curve in results.curves:
            for point in curve.points:
                same = (point.placement, point.epoch_s) == (best.placement, best.epoch_s)
                if same and (curve.engine, curve.backend) == (best.engine, best.backend):
                    return results, curve
    return None


def _predicted(results: Results, curve: Curve, counts: Sequence[int]) -> tuple[Prediction, ...]:
    from harness.analysis.models.predict import predict  # scipy's optimisers are heavy

    try:
        (found,) = predict(replace(results, curves=(curve,)), counts)
    except AnalysisError:
        return ()  # too few device counts for any model: there is nothing to name
    return found.predictions


def _fits(one: Prediction, goal: Goal) -> bool:
    if one.epoch_s is None:
        return False
    in_time = goal.deadline_s is None or upper(one.epoch_s) <= goal.deadline_s
    if goal.min_efficiency is None:
        return in_time
    return in_time and one.efficiency is not None and lower(one.efficiency) >= goal.min_efficiency
