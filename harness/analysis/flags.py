"""What a reader should know before trusting a point: costly instruments, unsteady windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from harness.analysis.points import Point
from harness.analysis.scaling import Curve
from harness.record import CONSEQUENCE, COSTLY

_UNSURE = "too unsteady to tell"
_SHOWN = 4  # flags named in a figure; the table has all of them


def curve_flags(curve: Curve) -> Iterator[str]:
    """Yield the flags of a curve, for a table that has its name above them."""
    if curve.unlike:
        yield f"unlike launches mixed: {curve.unlike}"
    yield from _costs(curve, "")
    drifts = listed(curve, _drift)
    if drifts:
        yield f"the window drifts in {drifts}"
    short = listed(curve, _too_short)
    if short:
        yield f"too few steps in the window to say whether it drifts, in {short}"
    outliers = listed(curve, _outliers)
    if outliers:
        yield f"outliers: {outliers}"


def _drift(point: Point) -> str | None:
    found = point.steadiness
    if found is None or found.largest_change is None:
        return None
    change = percent(found.largest_change)
    return f"{found.drifting} of {_launches(found.launches)} (by {change} at most)"


def _too_short(point: Point) -> str | None:
    found = point.steadiness
    if found is None or not found.too_short:
        return None
    return f"{found.too_short} of {_launches(found.launches)}"


def _outliers(point: Point) -> str | None:
    found = point.steadiness
    if found is None or not found.with_outliers:
        return None
    launches = f"{found.with_outliers} of {_launches(found.launches)}"
    share = _share(found.outlier_time_share)
    return f"{_steps(found.outliers)} in {launches} ({share} of the time)"


def figure_flags(curves: Sequence[Curve], instruments: Sequence[str]) -> list[str]:
    """Return the flags of the curves in a figure: costs by name, unsteady launches by their count.

    ``instruments`` are those that what is drawn depends on. At most a few lines; the table has all.
    """
    costs = [text for curve in curves for text in _costs(curve, f", {curve.label}", instruments)]
    shown = costs
    if len(costs) > _SHOWN:  # those that can be told first
        shown = [text for text in costs if not text.endswith(_UNSURE)][: _SHOWN - 1]
        more = len(costs) - len(shown)
        others = f"{more} more" if shown else str(more)
        shown.append(f"{others} costs above {100 * COSTLY:g} %, or unsteady: see the table")
    found = [p.steadiness for c in curves for p in c.points if p.steadiness]
    launches = sum(one.launches for one in found)
    drifting = sum(one.drifting for one in found)
    outlying = sum(one.with_outliers for one in found)
    parts = [f"the window drifts in {drifting} of {_launches(launches)}"] if drifting else []
    parts += [f"outlier steps in {outlying} of {_launches(launches)}"] if outlying else []
    mixed = [f"unlike launches mixed in {c.label}: {c.unlike}" for c in curves if c.unlike]
    return [*mixed, *shown, *(["; ".join(parts)] if parts else [])]


def _costs(curve: Curve, label: str, instruments: Iterable[str] = CONSEQUENCE) -> Iterator[str]:
    """Yield what instruments cost where a launch says more than ``COSTLY``, to either side.

    A step that was as much faster with an instrument is as bad a witness as one that was slower.
    """
    for name in instruments:
        verb = "cost" if name == "phases" else "costs"
        sure: list[str] = []
        unsure: list[str] = []
        for point in curve.points:
            costs, error = point.overheads.get(name, ()), point.overhead_errors.get(name)
            if any(abs(cost) > COSTLY for cost in costs):
                told = min(costs) > COSTLY and fmean(costs) > 2 * (error or 0.0)
                (sure if told else unsure).append(f"{_cost(costs, error)} at {where(curve, point)}")
        if sure:
            yield f"{name} {verb} {', '.join(sure)}{label}: {CONSEQUENCE[name]}"
        if unsure:
            yield f"{name} {verb} {', '.join(unsure)}{label}: {_UNSURE}"


def _cost(costs: Sequence[float], error: float | None) -> str:
    """Return a mean, with its standard error if it has one and the range over several launches."""
    text = _share(fmean(costs))
    if error is not None:
        text = f"{text.removesuffix(' %')} ±{_share(error)}"
    if len(costs) > 1:
        least = _share(min(costs)).removesuffix(" %")
        text += f" ({least} to {_share(max(costs))} in {_launches(len(costs))})"
    return text


def where(curve: Curve, point: Point) -> str:
    """Name a point inside its curve: ``N=2``, with the placement where N alone is not enough."""
    alike = sum(other.world_size == point.world_size for other in curve.points)
    return f"N={point.world_size}" + (f" ({point.placement})" if alike > 1 else "")


def listed(curve: Curve, text_of: Callable[[Point], str | None]) -> str:
    """Return ``TEXT at N=1, TEXT at N=2`` of the points that have a text."""
    texts: Iterable[tuple[Point, str | None]] = ((p, text_of(p)) for p in curve.points)
    return ", ".join(f"{text} at {where(curve, point)}" for point, text in texts if text)


def percent(change: float) -> str:
    """Return a relative change with its sign, which is a true minus: ``−1.7 %``."""
    rounded = round(100 * change, 1) + 0.0  # no −0.0
    return f"{rounded:+.1f} %".replace("-", "−")


def _share(part: float) -> str:
    percents = 100 * part
    text = f"{percents:.2g} %" if abs(percents) < 99 else f"{percents:,.0f} %"
    return text.replace("-", "−")


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"
