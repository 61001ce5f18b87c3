"""Where a step's time goes: one bar a point, its phases end to end, against the window's step."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from matplotlib.patches import Patch

from harness.analysis.facets import Facet
from harness.analysis.flags import where
from harness.analysis.plots.multiples import thinned
from harness.analysis.plots.series import (
    Plot,
    Row,
    columns,
    handle,
    identity,
    kind,
    launch_rows,
    support,
)
from harness.analysis.plots.style import INK, new_figure
from harness.analysis.points import Point
from harness.analysis.scaling import Curve
from harness.stats import Interval

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_MS = 1e3
#: In the order of a step: field of a point, name, colour (Okabe & Ito).
PHASES = (
    ("data_s", "data", "#E69F00"),
    ("forward_s", "forward", "#56B4E9"),
    ("backward_s", "backward", "#0072B2"),
    ("transfer_s", "transfer", "#D55E00"),
    ("wait_s", "wait", "#CC79A7"),
    ("update_s", "update", "#009E73"),
)
#: What every step has; of the others a rank that trains alone has none.
_ALWAYS = ("data_s", "forward_s", "backward_s", "update_s")
_BAR, _BAR_IN, _AXES_IN = 0.72, 0.135, 0.42  # part of its line; height of a line, and of the rest
_MOST_LINES = 56
_NAME_CHARS = 32
_HATCH = "//////"


@dataclass(frozen=True)
class Bar:
    """A point as drawn; seconds a step."""

    label: str
    phases: tuple[tuple[str, float], ...]  # colour, length; those that were measured
    step_s: float  # the window's

    @property
    def sum_s(self) -> float:
        """Return where the phases end."""
        return sum(length for _, length in self.phases)


def phases(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw one panel a batch, one bar a point; None where no launch measured phases."""
    measured = [c for c in facet.curves if any(_is_measured(p) for p in c.points)]
    if not measured:
        return None
    panels, left_out = bar_panels(measured, _is_measured)
    bars = {batch: [_bar(curve, point) for curve, point in panel] for batch, panel in panels}
    figure, axes = new_figure(
        len(panels),
        "Phases of a step",
        [
            f"{facet.title}, {facet.batch_text}, {facet.engine_text}",
            "instrumented steps after the window, means over ranks and launches; hatched: what "
            "the phases' sum lacks of the window's step, or has more than it",
            _unmarked(measured),
            left_out,
            *notes,
        ],
        _handles(),
        panels_in=bars_in(panels),
    )
    longest = max(max(bar.sum_s, bar.step_s) for one in bars.values() for bar in one)
    for ax, (text, found) in zip(axes, bars.items(), strict=True):
        _draw(ax, found)
        ax.set_xlim(0, _MS * longest * 1.04)
        ax.set_title(text, loc="left", pad=2)
    axes[-1].set_xlabel("ms a step")
    return Plot(figure, (*_points(measured, facet), *_launches(measured, facet)))


def bar_panels(
    curves: Sequence[Curve], is_measured: Callable[[Point], bool]
) -> tuple[list[tuple[str, list[tuple[Curve, Point]]]], str]:
    """Return the points of each batch, by its text, and what is said of those that are left out.

    More lines of names than ``_MOST_LINES`` would be no figure: curves then keep fewer counts.
    """
    every = [[(c, p) for p in c.points if is_measured(p)] for c in curves]
    every = [points for points in every if points]
    total = sum(map(len, every))
    kept = every
    most = _MOST_LINES // max(_lines(*pair) for points in every for pair in points)
    if total > most:
        kept = [thinned(points, max(2, most // len(every))) for points in every]
    if sum(map(len, kept)) > most:
        kept = thinned(kept, most // 2)
    drawn = sum(map(len, kept))
    panels: dict[str, list[tuple[Curve, Point]]] = {}
    for curve, point in (pair for points in kept for pair in points):
        panels.setdefault(curve.batch_text, []).append((curve, point))
    note = f"{drawn} of {total} points are drawn; the CSV has all" if drawn < total else ""
    return list(panels.items()), note


def bars_in(panels: Sequence[tuple[str, Sequence[tuple[Curve, Point]]]]) -> list[float]:
    """Return the heights of panels in inches; a name of several lines makes all bars higher."""
    lines = max(_lines(*pair) for _, points in panels for pair in points)
    return [_AXES_IN + _BAR_IN * lines * len(points) for _, points in panels]


def bar_text(curve: Curve, point: Point) -> str:
    """Name a bar; long names of kinds are broken, or they would leave the bars no room."""
    name, place = kind(curve), where(curve, point)
    if len(name) + len(place) + 2 <= _NAME_CHARS:
        return f"{name}  {place}"
    return "\n".join([*textwrap.wrap(name, _NAME_CHARS), place])


def _lines(curve: Curve, point: Point) -> int:
    return bar_text(curve, point).count("\n") + 1


def _draw(ax: Axes, bars: Sequence[Bar]) -> None:
    for line, bar in enumerate(bars):
        left = 0.0
        for colour, length in bar.phases:
            ax.barh(line, _MS * length, _BAR, left=_MS * left, color=colour, linewidth=0, zorder=2)
            left += length
        ends = sorted((left, bar.step_s))
        ax.barh(
            line, _MS * (ends[1] - ends[0]), _BAR, left=_MS * ends[0], facecolor="none",
            edgecolor=INK, hatch=_HATCH, linewidth=0, zorder=3,
        )  # fmt: skip
        ax.plot(
            [_MS * bar.step_s], [line], marker="|", color=INK, markersize=8, markeredgewidth=1.1,
            linestyle="none", zorder=4, clip_on=False,
        )  # fmt: skip
    ax.set_yticks(range(len(bars)), [bar.label for bar in bars])
    ax.set_ylim(len(bars) - 0.4, -0.6)  # the first on top
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def _bar(curve: Curve, point: Point) -> Bar:
    return Bar(bar_text(curve, point), _lengths(point), point.step_s.estimate)


def _lengths(point: Point) -> tuple[tuple[str, float], ...]:
    found = ((colour, _of(point, field)) for field, _, colour in PHASES)
    return tuple((colour, one.estimate) for colour, one in found if one)


def _of(point: Point, field: str) -> Interval | None:
    found: Interval | None = getattr(point, field)
    return found


def _is_measured(point: Point) -> bool:
    return any(_of(point, field) for field, _, _ in PHASES)


def _unmarked(curves: Sequence[Curve]) -> str:
    """Say where the hatched part has phases in it that an engine could not mark."""
    lacking = [
        curve.label
        for curve in curves
        if any(_is_measured(p) and not all(_of(p, f) for f in _ALWAYS) for p in curve.points)
    ]
    return f"not all phases could be marked: {'; '.join(lacking)}" if lacking else ""


def _handles() -> list[Artist]:
    plain = [Patch(facecolor=colour, linewidth=0, label=name) for _, name, colour in PHASES]
    return [
        *plain,
        Patch(facecolor="none", edgecolor=INK, hatch=_HATCH, linewidth=0, label="difference"),
        handle("window's step", marker="|", color=INK, linestyle="none", markersize=7),
    ]


def _points(curves: Sequence[Curve], facet: Facet) -> list[Row]:
    found = []
    for curve in curves:
        for point in filter(_is_measured, curve.points):
            row: Row = {"row": "point", **identity(facet, curve, point)}
            for field, name, _ in PHASES:
                row |= columns(name, "s", _of(point, field))
            row |= columns("phase_sum", "s", point.phase_sum_s)
            row |= columns("window_step", "s", point.step_s)
            row["phase_sum_minus_step_relative"] = point.phases_minus_step
            costs = point.overheads.get("phases")
            row["phase_overhead"] = fmean(costs) if costs else None
            found.append(row | support(point.phase_sum_s or point.step_s))
    return found


def _launches(curves: Sequence[Curve], facet: Facet) -> tuple[Row, ...]:
    every = [
        (identity(facet, curve, point), launch)
        for curve in curves
        for point in curve.points
        for launch in point.launches
        if any(getattr(launch, field) is not None for field, _, _ in PHASES)
    ]
    names = {f"{name}_s": field for field, name, _ in PHASES}
    return launch_rows(every, names | {"phase_sum_s": "phase_sum_s", "window_step_s": "step_s"})
