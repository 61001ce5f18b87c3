"""Epoch time against batch size: how large must a batch be before the devices are busy?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.analysis.facets import Facet
from harness.analysis.plots.multiples import MOST_LINES, MOST_PANELS, thinned
from harness.analysis.plots.panel import Panel
from harness.analysis.plots.placements import placement_handles, split_by
from harness.analysis.plots.series import (
    Look,
    Plot,
    Row,
    columns,
    dodged,
    handle,
    identity,
    intervals_text,
    kind,
    kind_colours,
    launch_rows,
    support,
)
from harness.analysis.plots.style import DASHES, INK, MARKERS, log2_axis, new_figure, unit_axis
from harness.analysis.scaling import Curve, Point
from harness.stats import SEQUENTIAL_NOTE

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

Line = list[tuple[Curve, Point]]
Name = tuple[str, int]  # the kind of a curve, and a device count
_PANEL_IN = 1.3


def epoch_time(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw one line a kind of curve and device count over the declared batch size.

    Many lines get an axes a kind; None where they are many and of one batch, and so no lines.
    """
    lines = _lines(facet)
    batches = sorted({curve.batch for line in lines.values() for curve, _ in line})
    if len(lines) > MOST_LINES and len(batches) == 1:
        return None
    look = _looks(facet, lines)
    panels, left_out = _panels(lines)
    many = len(panels) > 1
    own = _count_handles(panels, look) if many else _handles(lines, look)
    figure, axes = new_figure(
        len(panels),
        "Epoch time against batch size",
        [
            f"{facet.title}, {facet.engine_text}",
            "epoch time = training samples / throughput; faint, beside: single launches",
            intervals_text([point.epoch_s for line in lines.values() for _, point in line]),
            SEQUENTIAL_NOTE if facet.sequential else "",
            left_out,
            *notes,
        ],
        [*own, *placement_handles(facet.curves)],
        panels_in=[_PANEL_IN] * len(panels) if many else (),
    )
    for ax, names in zip(axes, panels, strict=True):
        panel = Panel(ax)
        for key, one in dodged({name: look[name] for name in names}).items():
            _draw(panel, lines[key], one)
        panel.fit(log=True)
        unit_axis(ax, "s")
        ax.set_ylabel("epoch time")
        log2_axis(ax, batches)
        if many:
            ax.set_title(names[0][0], loc="left", pad=2)
    weak = facet.curves[0].scaling == "weak"
    axes[-1].set_xlabel("batch size of a rank" if weak else "global batch size")
    return Plot(figure, (*_points(facet), *_launches(facet)))


def _panels(lines: Mapping[Name, Line]) -> tuple[list[list[Name]], str]:
    """Return the lines of each axes, and what is said of those that have none."""
    if len(lines) <= MOST_LINES:
        return [list(lines)], ""
    kinds: dict[str, list[Name]] = {}
    for name in lines:
        kinds.setdefault(name[0], []).append(name)
    panels = [
        thinned(sorted(kinds[one], key=lambda name: name[1]), MOST_LINES)
        for one in thinned(list(kinds), MOST_PANELS)
    ]
    drawn = sum(map(len, panels))
    some = drawn < len(lines)
    return panels, f"{drawn} of {len(lines)} lines are drawn; the CSV has all" if some else ""


def _handles(lines: Mapping[Name, Line], look: Mapping[Name, Look]) -> list[Line2D]:
    several = len({n for _, n in lines}) > 1
    return [
        handle(f"{name}, N={n}" if several else name, **look[name, n].line) for name, n in lines
    ]


def _count_handles(panels: Sequence[Sequence[Name]], look: Mapping[Name, Look]) -> list[Line2D]:
    """Return an entry a device count; the axes say which kind is which."""
    first = {n: look[name, n] for names in panels for name, n in names}
    return [handle(f"N={n}", **one.line | {"color": INK}) for n, one in sorted(first.items())]


def _draw(panel: Panel, line: Line, look: Look) -> None:
    batch_of = {id(point): curve.batch for curve, point in line}
    drawn, others = split_by(line, lambda pair: pair[0].batch, lambda pair: pair[1])
    for curve, point in drawn:
        panel.launches(curve.batch, _epochs_s(point), look)
    batches = [curve.batch for curve, _ in drawn]
    panel.intervals(batches, [point.epoch_s for _, point in drawn], look)
    for one in others:
        point = one.point
        panel.other(one, batch_of[id(point)], point.epoch_s, _epochs_s(point), look)


def _epochs_s(point: Point) -> list[float]:
    return [launch.epoch_s for launch in point.launches]


def _looks(facet: Facet, lines: dict[Name, Line]) -> dict[Name, Look]:
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


def _lines(facet: Facet) -> dict[Name, Line]:
    """Group the points of all curves into lines, by the kind of curve and the device count."""
    lines: dict[Name, Line] = {}
    for curve in facet.curves:
        for point in curve.points:
            lines.setdefault((kind(curve), point.world_size), []).append((curve, point))
    return {
        key: sorted(line, key=lambda pair: (pair[0].batch, pair[1].placement))
        for key, line in lines.items()
    }


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
