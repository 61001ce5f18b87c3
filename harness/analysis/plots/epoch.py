"""Epoch time against batch size: how large must a batch be before the devices are busy?"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.facets import Facet
from harness.analysis.plots.panel import Panel
from harness.analysis.plots.series import (
    Look,
    Plot,
    Row,
    columns,
    dodged,
    handle,
    identity,
    kind,
    kind_colours,
    launch_rows,
    support,
)
from harness.analysis.plots.style import DASHES, MARKERS, log2_axis, new_figure, unit_axis
from harness.analysis.scaling import Curve, Point
from harness.stats import SEQUENTIAL_NOTE

Line = list[tuple[Curve, Point]]


def epoch_time(facet: Facet, notes: Sequence[str]) -> Plot:
    """Draw one line a kind of curve and device count over the declared batch size."""
    lines = _lines(facet)
    look = _looks(facet, lines)
    several = len({n for _, n in lines}) > 1
    handles = [
        handle(f"{name}, N={n}" if several else name, **look[name, n].line) for name, n in lines
    ]
    figure, (ax,) = new_figure(
        1,
        "Epoch time against batch size",
        [
            f"{facet.title}, {facet.engine_text}",
            "epoch time = training samples / throughput; faint, beside: single launches",
            _intervals(lines),
            SEQUENTIAL_NOTE if facet.sequential else "",
            *notes,
        ],
        handles,
    )
    panel = Panel(ax)
    for key, line in lines.items():
        _draw(panel, line, look[key])
    panel.fit(log=True)
    unit_axis(ax, "s")
    ax.set_ylabel("epoch time")
    log2_axis(ax, sorted({curve.batch for line in lines.values() for curve, _ in line}))
    weak = facet.curves[0].scaling == "weak"
    ax.set_xlabel("batch size of a rank" if weak else "global batch size")
    return Plot(figure, (*_points(facet), *_launches(facet)))


def _draw(panel: Panel, line: Line, look: Look) -> None:
    for curve, point in line:
        panel.launches(curve.batch, [launch.epoch_s for launch in point.launches], look)
    batches = [curve.batch for curve, _ in line]
    panel.intervals(batches, [point.epoch_s for _, point in line], look)


def _looks(facet: Facet, lines: dict[tuple[str, int], Line]) -> dict[tuple[str, int], Look]:
    colour = kind_colours(facet.curves)
    counts = sorted({n for _, n in lines})
    return dodged(
        {
            (name, n): Look(
                colour[name],
                MARKERS[counts.index(n) % len(MARKERS)],
                DASHES[counts.index(n) % len(DASHES)],
            )
            for name, n in lines
        }
    )


def _lines(facet: Facet) -> dict[tuple[str, int], Line]:
    """Group the points of all curves into lines, by the kind of curve and the device count."""
    lines: dict[tuple[str, int], Line] = {}
    for curve in facet.curves:
        for point in curve.points:
            lines.setdefault((kind(curve), point.world_size), []).append((curve, point))
    return {
        key: sorted(line, key=lambda pair: (pair[0].batch, pair[1].placement))
        for key, line in lines.items()
    }


def _intervals(lines: dict[tuple[str, int], Line]) -> str:
    found = [point.epoch_s for line in lines.values() for _, point in line]
    methods = sorted({i.method for i in found if i.has_interval})
    level = f"{100 * found[0].level:.0f} % intervals: {', '.join(methods)}" if methods else ""
    single = "" if all(i.has_interval for i in found) else "one block: no interval"
    return "; ".join(text for text in (level, single) if text)


def _points(facet: Facet) -> list[Row]:
    return [
        {
            "row": "point", **identity(facet, curve, point),
            **columns("epoch", "s", point.epoch_s), **support(point.epoch_s),
        }
        for curve in facet.curves
        for point in curve.points
    ]  # fmt: skip


def _launches(facet: Facet) -> tuple[Row, ...]:
    every = [
        (identity(facet, curve, point), launch)
        for curve in facet.curves
        for point in curve.points
        for launch in point.launches
    ]
    return launch_rows(every, {"epoch_s": "epoch_s"})
