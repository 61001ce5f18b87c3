"""Points of one device count in several placements: one is in a line, the others stand beside it.

A line over device counts goes through the placement on the fewest nodes at each (the first one of
equals). Through the others it would go straight up, and nobody could tell which end is which: they
are hollow, a little to the left, with their number of nodes beside them, or with their placement
where that does not tell them from the one in the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from harness.analysis.plots.series import Look, handle
from harness.analysis.plots.style import FAINT, INK
from harness.analysis.scaling import Curve, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_LONGEST = 11  # characters of a placement beside a point: "4+4+4+4+4+4"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Other:
    """A point that is in no line; ``rank`` is its place, from 1, among those of its count."""

    point: Point
    rank: int
    label: str

    def x(self, at: float, look: Look) -> float:
        """Return where it is drawn on a logarithmic axis, beside the point of the line at ``at``.

        To the left, as far as its own launches, to the right of it, leave free.
        """
        factor: float = look.beside ** (-self.rank / 2)
        return at * look.shift * factor


def split(points: Iterable[Point]) -> tuple[tuple[Point, ...], tuple[Other, ...]]:
    """Return the points of a line, in order, one a device count, and the others."""
    return split_by(points, lambda point: point.world_size, lambda point: point)


def split_by(
    items: Iterable[_T], x_of: Callable[[_T], int], point_of: Callable[[_T], Point]
) -> tuple[tuple[_T, ...], tuple[Other, ...]]:
    """Do so with what stands for points, by any x."""
    groups: dict[int, list[_T]] = {}
    for item in items:
        groups.setdefault(x_of(item), []).append(item)
    line: list[_T] = []
    others: list[Other] = []
    for found in groups.values():
        ordered = sorted(found, key=lambda item: point_of(item).nodes)
        line.append(ordered[0])
        points = [point_of(item) for item in ordered]
        others += [
            Other(point, rank, _label(point, points))
            for rank, point in enumerate(points[1:], start=1)
        ]
    return tuple(line), tuple(others)


def draw_other(ax: Axes, other: Other, at: float, value: float, look: Look) -> None:
    """Draw a point that is in no line at ``at`` (before it is put beside), with its label."""
    x = other.x(at, look)
    ax.plot([x], [value], zorder=4, **hollow(look))
    ax.annotate(
        other.label, (x, value), xytext=(-3.5, 0), textcoords="offset points", fontsize=5,
        color=INK, ha="right", va="center", zorder=6,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.5, "linewidth": 0},
    )  # fmt: skip


def hollow(look: Look) -> dict[str, Any]:
    """Return the arguments of ``Axes.plot`` for a point that is in no line."""
    return {
        "color": look.colour, "marker": look.marker, "markerfacecolor": "white",
        "markeredgewidth": 0.9, "linestyle": "none",
    }  # fmt: skip


def placement_handles(curves: Sequence[Curve]) -> list[Line2D]:
    """Return the legend entry of hollow points, where there are any."""
    if not any(split(curve.points)[1] for curve in curves):
        return []
    entry = {"color": FAINT, "marker": "o", "markerfacecolor": "white", "linestyle": "none"}
    return [handle("same N placed otherwise (lines: on the fewest nodes)", **entry)]


def _label(point: Point, alike: Sequence[Point]) -> str:
    """Return ``2 nodes``; the placement where another point of the count is on as many."""
    if sum(other.nodes == point.nodes for other in alike) == 1:
        return f"{point.nodes} nodes"
    text = point.placement
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
