"""The isolated all-reduce of the gradient's bytes: latency and bus bandwidth against N."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.facets import Facet
from harness.analysis.plots.multiples import few
from harness.analysis.plots.panel import Panel
from harness.analysis.plots.placements import placement_handles
from harness.analysis.plots.series import (
    Plot,
    Row,
    columns,
    handle,
    identity,
    launch_rows,
    looks,
    node_boundaries,
    points_of,
    support,
)
from harness.analysis.plots.style import device_axis, new_figure, unit_axis
from harness.analysis.scaling import Curve


def allreduce(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw p50 over busbw; None where no launch measured one. One device reduces nothing."""
    measured = [c for c in facet.curves if any(p.allreduce_p50_s for p in c.points)]
    if not measured:
        return None
    drawn, left_out = few(measured)
    look = looks(drawn)
    figure, (latency, bandwidth) = new_figure(
        2,
        "Isolated all-reduce",
        [
            f"{facet.title}, {facet.engine_text}; {_bytes_text(measured)}, nothing else running",
            "median over iterations of the slowest rank; busbw = bytes / median × 2(N−1)/N; "
            "faint, beside: single launches",
            facet.interval_text,
            left_out,
            *notes,
        ],
        [
            *(handle(curve.label, **look[curve.label].line) for curve in drawn),
            *placement_handles(drawn),
        ],
    )
    times, rates = Panel(latency), Panel(bandwidth)
    for curve in drawn:
        times.curve(
            curve, look[curve.label],
            lambda point: point.allreduce_p50_s,
            lambda _, launch: launch.allreduce_p50_s,
        )  # fmt: skip
        rates.curve(
            curve, look[curve.label],
            lambda point: point.busbw_bytes_per_s,
            lambda _, launch: launch.busbw_bytes_per_s,
        )  # fmt: skip
    counts = sorted({p.world_size for _, p in points_of(measured) if p.allreduce_p50_s})
    for panel, unit in ((times, "s"), (rates, "B/s")):
        panel.fit(log=True)
        unit_axis(panel.ax, unit)
        node_boundaries(panel.ax, facet.curves, labelled=panel is times)
        device_axis(panel.ax, counts, label="devices N" if panel is rates else "")
    latency.set_ylabel("latency")
    bandwidth.set_ylabel("bus bandwidth")
    return Plot(figure, (*_points(measured, facet), *_launches(measured, facet)))


def _bytes_text(curves: Sequence[Curve]) -> str:
    sizes = sorted(
        {round(p.allreduce_bytes.estimate) for _, p in points_of(curves) if p.allreduce_bytes}
    )
    ends = list(dict.fromkeys((sizes[0], sizes[-1])))
    return f"{' to '.join(f'{size:,}' for size in ends)} bytes of gradient"


def _points(curves: Sequence[Curve], facet: Facet) -> list[Row]:
    return [
        {
            "row": "point", **identity(facet, curve, point),
            "bytes": point.allreduce_bytes and point.allreduce_bytes.estimate,
            **columns("allreduce_p50", "s", point.allreduce_p50_s),
            **columns("busbw", "bytes_per_s", point.busbw_bytes_per_s),
            **support(point.allreduce_p50_s),
        }
        for curve, point in points_of(curves)
        if point.allreduce_p50_s
    ]  # fmt: skip


def _launches(curves: Sequence[Curve], facet: Facet) -> tuple[Row, ...]:
    every = [
        (identity(facet, curve, point), launch)
        for curve, point in points_of(curves)
        for launch in point.launches
        if launch.allreduce_p50_s is not None
    ]
    names = ("allreduce_p50_s", "busbw_bytes_per_s")
    return launch_rows(every, {"bytes": "allreduce_bytes", **dict(zip(names, names, strict=True))})
