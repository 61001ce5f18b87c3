"""One axes and what is drawn in it: estimates with intervals, and every launch beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.markers import CARETDOWN, CARETUP

from harness.analysis.plots.placements import Other, draw_other, split
from harness.analysis.scaling import Curve, Launch, Point
from harness.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.analysis.plots.series import Look

_LOG_REACH, _LINEAR_REACH = 1.6, 1.35  # how far beyond the data an interval may stretch an axis
_LOG_PAD, _LINEAR_PAD = 1.15, 1.06


@dataclass(frozen=True)
class Bar:
    """An interval as drawn."""

    x: float
    low: float
    high: float
    colour: str


class Panel:
    """Draws into an axes and remembers what, so that the limits can follow the data.

    Intervals of two or three blocks can be a hundred times as wide as everything else. They would
    leave nothing of the data to see, so an axis follows estimates and launches, and an interval
    that reaches farther ends in an arrowhead at the edge. The CSV has its ends.
    """

    def __init__(self, ax: Axes) -> None:
        self.ax = ax
        self._values: list[float] = []
        self._bars: list[Bar] = []

    def curve(
        self,
        curve: Curve,
        look: Look,
        interval_of: Callable[[Point], Interval | None],
        value_of: Callable[[Point, Launch], float | None],
    ) -> None:
        """Draw the points of a curve over N, and their launches.

        One of each N is in the line; the others stand beside it (see ``placements``).
        """
        measured = [(p, found) for p in curve.points if (found := interval_of(p))]
        intervals = {id(point): found for point, found in measured}
        line, others = split(point for point, _ in measured)
        for point in line:
            self.launches(point.world_size, _values(point, value_of), look)
        self.intervals([p.world_size for p in line], [intervals[id(p)] for p in line], look)
        for one in others:
            values = _values(one.point, value_of)
            self.other(one, one.point.world_size, intervals[id(one.point)], values, look)

    def other(
        self, one: Other, at: float, found: Interval, values: Sequence[float], look: Look
    ) -> None:
        """Draw a point that is in no line beside ``at``, and its launches."""
        x = one.x(at, look)
        self.launches(x / look.shift, values, look)
        self._values.append(found.estimate)
        draw_other(self.ax, one, at, found.estimate, look)
        self._bars += _bars([x], [found], look)

    def launches(self, x: float, values: Sequence[float], look: Look) -> None:
        """Draw launches faintly, a little to the right of their mean, which would hide them."""
        self._values += values
        at = x * look.shift * look.beside
        self.ax.plot(
            [at] * len(values), values, linestyle="none", marker=look.marker,
            markersize=2.2, markeredgewidth=0, color=look.colour, alpha=0.4, zorder=2,
        )  # fmt: skip

    def intervals(self, x: Sequence[int], found: Sequence[Interval], look: Look) -> None:
        """Draw estimates at ``x``, joined by a line; ``fit`` draws the bars."""
        self._values += [one.estimate for one in found]
        places = [look.shift * at for at in x]
        self.ax.plot(places, [one.estimate for one in found], zorder=4, **look.line)
        self._bars += _bars(places, found, look)

    def fit(self, *, log: bool, include: Sequence[float] = ()) -> None:
        """Set the limits of y to the data and ``include``, and draw the intervals into them."""
        data = [*self._values, *include]
        low, high = self._log_limits(data) if log else self._linear_limits(data)
        if log:
            self.ax.set_yscale("log")
        self.ax.set_ylim(low, high)
        for bar in self._bars:
            self._draw(bar, low, high)

    def _log_limits(self, data: Sequence[float]) -> tuple[float, float]:
        low, high = min(data), max(data)
        if not self._bars:
            return low / _LOG_PAD, high * _LOG_PAD
        low = min(low, max(min(bar.low for bar in self._bars), low / _LOG_REACH))
        high = max(high, min(max(bar.high for bar in self._bars), high * _LOG_REACH))
        return low / _LOG_PAD, high * _LOG_PAD

    def _linear_limits(self, data: Sequence[float]) -> tuple[float, float]:
        high = max(data)
        if self._bars:
            high = max(high, min(max(bar.high for bar in self._bars), high * _LINEAR_REACH))
        return 0.0, (high or 1.0) * _LINEAR_PAD

    def _draw(self, bar: Bar, low: float, high: float) -> None:
        ends = max(bar.low, low), min(bar.high, high)
        self.ax.plot([bar.x] * 2, ends, color=bar.colour, linewidth=0.8, zorder=3)
        for end, cut, arrow in (
            (ends[0], bar.low < low, CARETDOWN), (ends[1], bar.high > high, CARETUP),
        ):  # fmt: skip
            self.ax.plot(
                [bar.x], [end], linestyle="none", color=bar.colour, clip_on=False, zorder=5,
                marker=arrow if cut else "_", markersize=3.2, markeredgewidth=0.8,
            )  # fmt: skip


def _values(point: Point, value_of: Callable[[Point, Launch], float | None]) -> list[float]:
    return [v for launch in point.launches if (v := value_of(point, launch)) is not None]


def _bars(places: Sequence[float], found: Sequence[Interval], look: Look) -> list[Bar]:
    return [
        Bar(at, one.low, one.high, look.colour)
        for at, one in zip(places, found, strict=True)
        if one.low is not None and one.high is not None
    ]
