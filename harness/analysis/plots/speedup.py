"""Speedup (with the throughput it comes from) and efficiency against the device count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.analysis.apart import apart_notes
from harness.analysis.facets import Facet, is_base_point
from harness.analysis.plots.multiples import MOST_LINES, Quantity, counts_of, draw_by_batch
from harness.analysis.plots.panel import Panel
from harness.analysis.plots.placements import placement_handles
from harness.analysis.plots.reference import draw_fits, draw_ideal, fit_handles, slope_text
from harness.analysis.plots.series import (
    Look,
    Plot,
    Row,
    check_columns,
    columns,
    handle,
    ideal_handle,
    identity,
    kind,
    launch_rows,
    looks,
    node_boundaries,
    support,
)
from harness.analysis.plots.style import device_axis, new_figure, ratio_axis, unit_axis
from harness.analysis.scaling import Curve, Launch, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_FITTED, _FITTED_E = "line fitted to S against N", "the line fitted to S, / N"


def speedup(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw S with its ideal line over the absolute throughput; only the latter without a base.

    None where there are only bases: each is 1 by definition. With many curves S alone, an axes a
    batch.
    """
    drawn = _drawn(facet)
    if not drawn:
        return None
    based = [curve for curve in drawn if curve.base]
    rows = (*_points(facet), *_launches(facet))
    if len(drawn) > MOST_LINES and based:
        more = "slopes: in the CSV; throughput: in its own figure"
        quantity = Quantity(
            "speedup S",
            lambda point: point.speedup,
            lambda _, launch: launch.speedup,
            log=True,
            include=_ideals,
            beside=_beside_speedup,
        )
        handles = [*fit_handles(based, _FITTED), ideal_handle()]
        said = [*_notes(facet, notes), more]
        return Plot(draw_by_batch(based, quantity, "Speedup", said, handles), rows)
    return Plot(_speedup_figure(facet, notes, drawn, based), rows)


def efficiency(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw E with its ideal line at 1; None where nothing is there to divide, or to divide by."""
    based = [curve for curve in _drawn(facet) if curve.base]
    if not based:
        return None
    said = _notes(facet, notes)
    rows = (*_points(facet), *_launches(facet))
    ends = [*fit_handles(based, _FITTED_E), ideal_handle()]
    if len(based) > MOST_LINES:
        quantity = Quantity(
            "efficiency E",
            lambda point: point.efficiency,
            _efficiency,
            log=False,
            include=lambda _: [1.0],
            beside=lambda ax, curves, look: _beside_efficiency(
                ax, [(curve, look[kind(curve)]) for curve in curves]
            ),
        )
        return Plot(draw_by_batch(based, quantity, "Efficiency", said, ends), rows)
    look = looks(_drawn(facet))
    found = [handle(curve.label, **look[curve.label].line) for curve in based]
    handles = [*found, *placement_handles(based), *ends]
    figure, (ax,) = new_figure(1, "Efficiency", said, handles)
    panel = Panel(ax)
    for curve in based:
        panel.curve(curve, look[curve.label], lambda point: point.efficiency, _efficiency)
    panel.fit(log=False, include=[1.0])
    ax.set_ylabel("efficiency E")
    node_boundaries(ax, based)
    device_axis(ax, counts_of(based))
    _beside_efficiency(ax, [(curve, look[curve.label]) for curve in based])
    return Plot(figure, rows)


def _speedup_figure(
    facet: Facet, notes: Sequence[str], drawn: Sequence[Curve], based: Sequence[Curve]
) -> Figure:
    look = looks(drawn)
    title = "Speedup and throughput" if based else "Throughput"
    handles = _handles(drawn, look, based)
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
    device_axis(rate.ax, counts_of(drawn))
    return figure


def _draw_speedup(ax: Axes, curves: Sequence[Curve], look: Mapping[str, Look]) -> None:
    panel = Panel(ax)
    for curve in curves:
        panel.curve(
            curve, look[curve.label],
            lambda point: point.speedup,
            lambda _, launch: launch.speedup,
        )  # fmt: skip
    panel.fit(log=True, include=_ideals(curves))
    ratio_axis(ax)
    device_axis(ax, counts_of(curves), label="")
    draw_ideal(ax, lambda n: n / _base_devices(curves))
    draw_fits(ax, [(curve, look[curve.label]) for curve in curves], lambda _, s: s)
    ax.set_ylabel("speedup S")
    node_boundaries(ax, curves)


def _beside_speedup(ax: Axes, curves: Sequence[Curve], look: Mapping[str, Look]) -> None:
    ratio_axis(ax)
    draw_ideal(ax, lambda n: n / _base_devices(curves))
    draw_fits(ax, [(curve, look[kind(curve)]) for curve in curves], lambda _, s: s)


def _beside_efficiency(ax: Axes, fits: Sequence[tuple[Curve, Look]]) -> None:
    devices = _base_devices([curve for curve, _ in fits])
    draw_ideal(ax, lambda _: 1.0)
    draw_fits(ax, fits, lambda n, s: s * devices / n)


def _base_devices(curves: Sequence[Curve]) -> int:
    """Return the devices of the base: one name for all curves, see ``scaling.curves``."""
    base = curves[0].base
    assert base is not None  # the curves are those that have one
    return base.devices


def _ideals(curves: Sequence[Curve]) -> list[float]:
    return [1.0, *(n / _base_devices(curves) for n in counts_of(curves))]


def _efficiency(point: Point, launch: Launch) -> float | None:
    """Return E of one launch: its S, times what E is of S at its point."""
    if launch.speedup is None or point.speedup is None or point.efficiency is None:
        return None
    return launch.speedup * point.efficiency.estimate / point.speedup.estimate


def _drawn(facet: Facet) -> list[Curve]:
    """Leave out the curves that are nothing but the base."""
    return [c for c in facet.curves if not all(is_base_point(c, point) for point in c.points)]


def _handles(
    curves: Sequence[Curve], look: Mapping[str, Look], based: Sequence[Curve]
) -> list[Line2D]:
    found = [
        handle(f"{curve.label}{slope_text(curve)}", **look[curve.label].line) for curve in curves
    ]
    found += placement_handles(curves)
    return [*found, *fit_handles(based, _FITTED), ideal_handle()] if based else found


def _notes(facet: Facet, notes: Sequence[str]) -> list[str]:
    return [
        f"{facet.title}, {facet.batch_text}",
        f"{facet.engine_text}, {facet.base_text}; faint, beside: single launches{_bare(facet)}",
        facet.interval_text,
        _baseless(facet),
        *apart_notes(facet.curves),
        *notes,
    ]


def _bare(facet: Facet) -> str:
    """Say that launches have no S of their own where their base is apart."""
    apart = [point.apart for curve in _drawn(facet) for point in curve.points]
    return " (of S where it has pairs)" if any(apart) else ""


def _baseless(facet: Facet) -> str:
    """Name the curves that have no S beside others that have."""
    lacking = [f"{c.label} ({c.note})" for c in _drawn(facet) if c.base is None]
    others = any(curve.base for curve in facet.curves)
    return f"no S: {'; '.join(lacking)}" if lacking and others else ""


def _points(facet: Facet) -> list[Row]:
    return [
        {
            "row": "point", **identity(facet, curve, point),
            **columns("throughput", "samples_per_s", point.throughput_samples_per_s),
            **columns("speedup", "", point.speedup),
            **columns("efficiency", "", point.efficiency),
            "base_apart": curve.apart if point.apart else None,
            **support(point.speedup),
            **columns("slope", "", curve.slope),
            **columns("intercept", "", curve.intercept),
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
