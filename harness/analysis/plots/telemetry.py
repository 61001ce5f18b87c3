"""How busy devices were, and what power they took, against N; the processor where no GPU is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from harness.analysis.plots.style import device_axis, new_figure
from harness.analysis.scaling import Curve, Launch, Point
from harness.stats import Interval


@dataclass(frozen=True)
class Told:
    """A quantity of telemetry: its field, the name on its axis, and by what it is multiplied."""

    field: str
    label: str
    factor: Callable[[Point], float] = lambda _: 1.0
    include: tuple[float, ...] = ()

    def of(self, point: Point) -> Interval | None:
        """Return its interval as drawn; None where it was not told."""
        found: Interval | None = getattr(point, self.field)
        return found and found.scaled(self.factor(point))

    def of_launch(self, point: Point, launch: Launch) -> float | None:
        """Return what one launch told, as drawn."""
        found: float | None = getattr(launch, self.field)
        return None if found is None else found * self.factor(point)


_GPU = (
    Told("gpu_utilisation", "GPU utilisation in %", lambda _: 100.0, (100.0,)),
    Told("gpu_power_w", "W a device", lambda point: 1 / point.world_size),
)
_CPU = (
    Told("rank_cpu_cores", "busy cores a rank"),
    Told("cpu_utilisation", "nodes' cores in %", lambda _: 100.0, (100.0,)),
)
_GPU_NOTE = (
    "utilisation: share of time in which any kernel ran, mean over devices; power: of all "
    "devices / N"
)
_CPU_NOTE = (
    "no GPU told anything: the processor; cores that a rank keeps busy, waiting in a loop among "
    "them, and the busy share of all cores of the nodes"
)


def utilisation(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw utilisation over power, or busy cores over the nodes'; None without telemetry."""
    gpu = _measured(facet.curves, _GPU)
    measured = gpu or _measured(facet.curves, _CPU)
    if not measured:
        return None
    drawn, left_out = few(measured)
    shown = [one for one in (_GPU if gpu else _CPU) if _measured(drawn, (one,))]
    look = looks(drawn)
    figure, axes = new_figure(
        len(shown),
        "GPU utilisation and power" if gpu else "CPU utilisation",
        [
            f"{facet.title}, {facet.batch_text}, {facet.engine_text}",
            _GPU_NOTE if gpu else _CPU_NOTE,
            f"means over the window; {facet.interval_text}; faint, beside: single launches",
            left_out,
            *notes,
        ],
        [
            *(handle(curve.label, **look[curve.label].line) for curve in drawn),
            *placement_handles(drawn),
        ],
    )
    counts = sorted({p.world_size for _, p in points_of(drawn) if any(o.of(p) for o in shown)})
    for ax, told in zip(axes, shown, strict=True):
        panel = Panel(ax)
        for curve in drawn:
            panel.curve(curve, look[curve.label], told.of, told.of_launch)
        panel.fit(log=False, include=told.include)
        ax.set_ylabel(told.label)
        node_boundaries(ax, facet.curves, labelled=ax is axes[0])
        device_axis(ax, counts, label="devices N" if ax is axes[-1] else "")
    return Plot(figure, (*_points(measured, facet), *_launches(measured, facet)))


def _measured(curves: Sequence[Curve], told: Sequence[Told]) -> list[Curve]:
    return [c for c in curves if any(one.of(point) for point in c.points for one in told)]


def _points(curves: Sequence[Curve], facet: Facet) -> list[Row]:
    return [
        {
            "row": "point", **identity(facet, curve, point),
            **columns("gpu_utilisation", "", point.gpu_utilisation),
            **columns("gpu_power", "w", point.gpu_power_w),
            **columns("rank_cpu", "cores", point.rank_cpu_cores),
            **columns("cpu_utilisation", "", point.cpu_utilisation),
            **support(point.gpu_utilisation or point.rank_cpu_cores),
        }
        for curve, point in points_of(curves)
    ]  # fmt: skip


def _launches(curves: Sequence[Curve], facet: Facet) -> tuple[Row, ...]:
    every = [
        (identity(facet, curve, point), launch)
        for curve, point in points_of(curves)
        for launch in point.launches
    ]
    fields = {
        "gpu_utilisation": "gpu_utilisation", "gpu_power_w": "gpu_power_w",
        "rank_cpu_cores": "rank_cpu_cores", "cpu_utilisation": "cpu_utilisation",
    }  # fmt: skip
    return launch_rows(every, fields)
