"""Speedup (with the throughput it comes from) and efficiency against the device count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.analysis.facets import Facet, is_base_point
from harness.analysis.plots.panel import Panel
from harness.analysis.plots.series import (
    Look,
    Plot,
    Row,
    check_columns,
    columns,
    handle,
    ideal_handle,
    identity,
    launch_rows,
    looks,
    node_boundaries,
    support,
)
from harness.analysis.plots.style import (
    INK,
    device_axis,
    new_figure,
    ratio_axis,
    unit_axis,
)
from harness.analysis.scaling import Curve, Launch, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


def speedup(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw S with its ideal line over the absolute throughput; only the latter without a base.

    None where there are only bases: each is 1 by definition.
    """
    drawn = _drawn(facet)
    if not drawn:
        return None
    look = looks(drawn)
    based = [curve for curve in drawn if curve.base]
    handles = _handles(drawn, look, bool(based))
    title = "Speedup and throughput" if based else "Throughput"
    figure, axes = new_figure(2 if based else 1, title, _notes(facet, notes), handles)
    if based:
        _draw_speedup(axes[0], based, look)
    rate = Panel(axes[-1])
    for curve in drawn:
        rate.curve(
            curve, look[curve.label],
            lambda point: point.throughput_samples_per_s,
            lambda _, launch: launch.throughput_samples_per_s,
        )  # fmt: skip
    rate.fit(log=True)
    unit_axis(rate.ax)
    rate.ax.set_ylabel("samples/s")
    node_boundaries(rate.ax, drawn, labelled=not based)
    device_axis(rate.ax, _counts(drawn))
    return Plot(figure, (*_points(facet), *_launches(facet)))


def efficiency(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw E with its ideal line at 1; None where nothing is there to divide, or to divide by."""
    based = [curve for curve in _drawn(facet) if curve.base]
    if not based:
        return None
    look = looks(_drawn(facet))
    handles = [handle(curve.label, **look[curve.label].line) for curve in based]
    handles.append(ideal_handle())
    figure, (ax,) = new_figure(1, "Efficiency", _notes(facet, notes), handles)
    panel = Panel(ax)
    for curve in based:
        panel.curve(curve, look[curve.label], lambda point: point.efficiency, _efficiency)
    panel.fit(log=False, include=[1.0])
    ax.axhline(1.0, color=INK, linestyle=(0, (4, 3)), linewidth=0.8, zorder=1)
    ax.set_ylabel("efficiency E")
    node_boundaries(ax, based)
    device_axis(ax, _counts(based))
    return Plot(figure, (*_points(facet), *_launches(facet)))


def _draw_speedup(ax: Axes, curves: Sequence[Curve], look: dict[str, Look]) -> None:
    panel = Panel(ax)
    for curve in curves:
        panel.curve(
            curve, look[curve.label],
            lambda point: point.speedup,
            lambda _, launch: launch.speedup,
        )  # fmt: skip
    base = curves[0].base
    assert base is not None  # the curves are those that have one
    counts = _counts(curves)
    panel.fit(log=True, include=[1.0, *(n / base.devices for n in counts)])
    ratio_axis(ax)
    device_axis(ax, counts, label="")
    # Over the whole axis, so that a single device count has its ideal, too.
    ends = list(ax.get_xlim())
    ideal = [n / base.devices for n in ends]
    ax.plot(ends, ideal, color=INK, linestyle=(0, (4, 3)), linewidth=0.8, zorder=1)
    ax.set_xlim(*ends)
    ax.set_ylabel("speedup S")
    node_boundaries(ax, curves)


def _efficiency(point: Point, launch: Launch) -> float | None:
    """Return E of one launch: its S, times what E is of S at its point."""
    if launch.speedup is None or point.speedup is None or point.efficiency is None:
        return None
    return launch.speedup * point.efficiency.estimate / point.speedup.estimate


def _drawn(facet: Facet) -> list[Curve]:
    """Leave out the curves that are nothing but the base."""
    return [c for c in facet.curves if not all(is_base_point(c, point) for point in c.points)]


def _counts(curves: Sequence[Curve]) -> list[int]:
    return sorted({point.world_size for curve in curves for point in curve.points})


def _handles(curves: Sequence[Curve], look: dict[str, Look], ideal: bool) -> list[Line2D]:
    found = []
    for curve in curves:
        slope = f" (slope {curve.slope.estimate:.2f})" if curve.slope else ""
        found.append(handle(f"{curve.label}{slope}", **look[curve.label].line))
    return [*found, ideal_handle()] if ideal else found


def _notes(facet: Facet, notes: Sequence[str]) -> list[str]:
    return [
        f"{facet.title}, {facet.batch_text}",
        f"{facet.engine_text}, {facet.base_text}; faint, beside: single launches",
        facet.interval_text,
        *notes,
    ]


def _points(facet: Facet) -> list[Row]:
    return [
        {
            "row": "point", **identity(facet, curve, point),
            **columns("throughput", "samples_per_s", point.throughput_samples_per_s),
            **columns("speedup", "", point.speedup),
            **columns("efficiency", "", point.efficiency),
            **support(point.speedup),
            **columns("slope", "", curve.slope),
            **check_columns(point.check),
        }
        for curve in facet.curves
        for point in curve.points
    ]  # fmt: skip


def _launches(facet: Facet) -> tuple[Row, ...]:
    every: list[tuple[Row, Point]] = [
        (identity(facet, curve, point), point) for curve in facet.curves for point in curve.points
    ]
    return launch_rows(
        ((row, launch) for row, point in every for launch in point.launches),
        {"throughput_samples_per_s": "throughput_samples_per_s", "speedup": "speedup"},
    )
