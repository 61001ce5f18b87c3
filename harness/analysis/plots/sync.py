"""Exposed sync a step, split into transfer and wait, against the device count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.analysis.facets import Facet
from harness.analysis.plots.multiples import by_batch
from harness.analysis.plots.panel import Panel
from harness.analysis.plots.placements import hollow, placement_handles, split
from harness.analysis.plots.series import (
    Look,
    Plot,
    Row,
    columns,
    handle,
    identity,
    kind,
    kind_looks,
    launch_rows,
    node_boundaries,
    support,
)
from harness.analysis.plots.style import FAINT, device_axis, new_figure
from harness.analysis.scaling import Curve, Point

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

_MS = 1e3


def exposed_sync(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw one panel a batch; None where no launch measured a synchronisation."""
    measured = [c for c in facet.curves if any(p.exposed_sync_s for p in c.points)]
    if not measured:
        return None
    look = kind_looks(measured)
    panels = by_batch(measured)
    handles = [
        *(handle(name, **look[name].line) for name in look),
        *placement_handles(measured),
        _transfer_handle(),
    ]
    figure, axes = new_figure(
        len(panels.groups),
        "Exposed gradient synchronisation",
        [
            f"{facet.title}, {facet.batch_text}, {facet.engine_text}",
            "per step, mean over ranks; shaded: wait; faint, beside: single launches",
            facet.interval_text,
            panels.note,
            *notes,
        ],
        handles,
        panels_in=panels.panels_in,
    )
    counts = sorted({p.world_size for c in measured for p in c.points if p.exposed_sync_s})
    top = max(p.exposed_sync_s.estimate for c in measured for p in c.points if p.exposed_sync_s)
    for ax, shown in zip(axes, panels.groups, strict=True):
        panel = Panel(ax)
        for curve in shown:
            _draw(panel, curve, look[kind(curve)])
        panel.fit(log=False, include=[_MS * top])
        ax.set_ylabel("ms a step")
        ax.set_title(shown[0].batch_text, loc="left", pad=2)
        node_boundaries(ax, facet.curves, labelled=ax is axes[0])
        device_axis(ax, counts, label="devices N" if ax is axes[-1] else "")
    return Plot(figure, (*_points(facet), *_launches(facet)))


def _transfer_handle() -> Line2D:
    hollow = {"marker": "o", "markerfacecolor": "white"}
    return handle("transfer (no wait)", color=FAINT, linestyle=":", linewidth=0.9, **hollow)


def _draw(panel: Panel, curve: Curve, look: Look) -> None:
    panel.curve(
        curve, look,
        lambda point: point.exposed_sync_s and point.exposed_sync_s.scaled(_MS),
        lambda _, launch: launch.exposed_sync_s and launch.exposed_sync_s * _MS,
    )  # fmt: skip
    line, others = split(p for p in curve.points if p.transfer_s and p.exposed_sync_s)
    ax = panel.ax
    for one in others:
        transfer_ms, exposed_ms = _parts_ms(one.point)
        x = one.x(one.point.world_size, look)
        ax.vlines([x], transfer_ms, exposed_ms, color=look.colour, alpha=0.2, linewidth=4, zorder=2)
        ax.plot([x], [transfer_ms], markersize=2.6, zorder=3, **hollow(look))
    if line:
        counts = [point.world_size * look.shift for point in line]
        transfer, exposed = (list(values) for values in zip(*map(_parts_ms, line), strict=True))
        ax.fill_between(counts, transfer, exposed, color=look.colour, alpha=0.14, linewidth=0)
        # Bars as well as the area between them: a single device count has no area.
        ax.vlines(counts, transfer, exposed, color=look.colour, alpha=0.2, linewidth=4, zorder=2)
        dotted = look.line | {"linestyle": ":", "markerfacecolor": "white"}
        ax.plot(counts, transfer, linewidth=0.9, markersize=2.6, zorder=3, **dotted)


def _parts_ms(point: Point) -> tuple[float, float]:
    """Return transfer and exposed sync of a point that has both, in ms a step."""
    assert point.transfer_s is not None
    assert point.exposed_sync_s is not None
    return point.transfer_s.estimate * _MS, point.exposed_sync_s.estimate * _MS


def _points(facet: Facet) -> list[Row]:
    return [
        {
            "row": "point", **identity(facet, curve, point),
            **columns("exposed_sync", "s", point.exposed_sync_s),
            **columns("transfer", "s", point.transfer_s),
            **columns("wait", "s", point.wait_s),
            **columns("isolated_allreduce_p50", "s", point.allreduce_p50_s),
            **support(point.exposed_sync_s),
        }
        for curve in facet.curves
        for point in curve.points
        if point.exposed_sync_s or point.allreduce_p50_s
    ]  # fmt: skip


def _launches(facet: Facet) -> tuple[Row, ...]:
    every = [
        (identity(facet, curve, point), launch)
        for curve in facet.curves
        for point in curve.points
        for launch in point.launches
        if launch.exposed_sync_s is not None
    ]
    return launch_rows(
        every,
        {"exposed_sync_s": "exposed_sync_s", "transfer_s": "transfer_s", "wait_s": "wait_s"},
    )
