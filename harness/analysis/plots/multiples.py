"""Small multiples: how many curves share an axes, and what is left to the CSV where many are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from harness.analysis.plots.panel import Panel
from harness.analysis.plots.placements import placement_handles
from harness.analysis.plots.series import Look, handle, kind, kind_looks, node_boundaries
from harness.analysis.plots.style import device_axis, new_figure, unit_axis
from harness.analysis.scaling import Curve, Launch, Point
from harness.stats import Interval

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 8  # in one axes; more cannot be told apart
MOST_PANELS = 8  # in one figure, which is then as high as a page
_PANEL_IN, _SMALL_IN, _FEW_PANELS = 1.5, 1.15, 4
_T = TypeVar("_T")


@dataclass(frozen=True)
class Panels:
    """Curves sorted into axes, and what is said of those that have none."""

    groups: tuple[tuple[Curve, ...], ...]
    note: str

    @property
    def panels_in(self) -> list[float]:
        """Return the height of each axes in inches."""
        return [_PANEL_IN if len(self.groups) <= _FEW_PANELS else _SMALL_IN] * len(self.groups)


@dataclass(frozen=True)
class Quantity:
    """What is drawn against the device count: an interval a point, a value a launch."""

    label: str  # of its axis
    interval_of: Callable[[Point], Interval | None]
    value_of: Callable[[Point, Launch], float | None]
    log: bool
    unit: str = ""  # of a logarithmic axis
    include: Callable[[Sequence[Curve]], Sequence[float]] = lambda _: ()
    beside: Callable[[Axes, Sequence[Curve], Mapping[str, Look]], None] = lambda *_: None


def thinned(values: Sequence[_T], most: int) -> list[_T]:
    """Return at most ``most`` of the values, evenly chosen, the first and the last among them.

    Of one or none there is no last: the first ones, then.
    """
    if len(values) <= most:
        return list(values)
    if most < 2:
        return list(values[:most])
    step = (len(values) - 1) / (most - 1)
    return [values[round(step * index)] for index in range(most)]


def by_batch(curves: Iterable[Curve]) -> Panels:
    """Give each batch an axes, and several where it has more than ``MOST_LINES`` curves."""
    batches: dict[int, list[Curve]] = {}
    for curve in curves:
        batches.setdefault(curve.batch, []).append(curve)
    every = [
        tuple(found[start : start + MOST_LINES])
        for _, found in sorted(batches.items())
        for start in range(0, len(found), MOST_LINES)
    ]
    groups = thinned(every, MOST_PANELS)
    drawn = sum(len(group) for group in groups)
    total = sum(len(group) for group in every)
    note = f"{drawn} of {total} curves are drawn; the CSV has all" if drawn < total else ""
    return Panels(tuple(groups), note)


def few(curves: Sequence[Curve]) -> tuple[list[Curve], str]:
    """Return what fits into one axes: all curves, or those of one batch, and what is said of it.

    For figures whose axes are for different quantities.
    """
    if len(curves) <= MOST_LINES:
        return list(curves), ""
    first = by_batch(curves).groups[0]
    text = f"{first[0].batch_text} alone" if len(first) > 1 else first[0].label
    return list(first), f"drawn: {text}, {len(first)} of {len(curves)} curves; the CSV has all"


def counts_of(curves: Iterable[Curve]) -> list[int]:
    """Return the device counts of curves, in their order."""
    return sorted({point.world_size for curve in curves for point in curve.points})


def draw_by_batch(
    curves: Sequence[Curve],
    quantity: Quantity,
    title: str,
    notes: Sequence[str],
    handles: Sequence[Artist] = (),
) -> Figure:
    """Draw a quantity against the device count, an axes a batch; colours and markers tell kinds.

    ``curves`` are those that have the quantity at one point or more.
    """
    panels = by_batch(curves)
    look = kind_looks(curves)
    figure, axes = new_figure(
        len(panels.groups),
        title,
        [*notes, panels.note],
        [
            *(handle(name, **look[name].line) for name in look),
            *placement_handles(curves),
            *handles,
        ],
        panels_in=panels.panels_in,
    )
    counts = _measured_counts(curves, quantity)
    for ax, group in zip(axes, panels.groups, strict=True):
        panel = Panel(ax)
        for curve in group:
            panel.curve(curve, look[kind(curve)], quantity.interval_of, quantity.value_of)
        panel.fit(log=quantity.log, include=quantity.include(group))
        if quantity.log:
            unit_axis(ax, quantity.unit)
        ax.set_ylabel(quantity.label)
        ax.set_title(group[0].batch_text, loc="left", pad=2)
        device_axis(ax, counts, label="devices N" if ax is axes[-1] else "")
        quantity.beside(ax, group, look)
        node_boundaries(ax, curves, labelled=ax is axes[0])
    return figure


def _measured_counts(curves: Sequence[Curve], quantity: Quantity) -> list[int]:
    return sorted(
        {
            point.world_size
            for curve in curves
            for point in curve.points
            if quantity.interval_of(point) is not None
        }
    )
