"""Epoch time against batch size: how large must a batch be before the devices are busy?"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.facets import Facet
from harness.analysis.plots.series import (
    Look,
    Plot,
    Row,
    columns,
    handle,
    identity,
    launch_rows,
    support,
)
from harness.analysis.plots.style import (
    DASHES,
    MARKERS,
    OKABE_ITO,
    legend_below,
    log2_axis,
    new_figure,
)
from harness.analysis.scaling import Curve, Point

Line = list[tuple[Curve, Point]]


def epoch_time(facet: Facet, notes: Sequence[str]) -> Plot:
    """Draw one line an engine, backend and device count over the declared batch size."""
    lines = _lines(facet)
    families = list(dict.fromkeys(name.rsplit(", N=", 1)[0] for name in lines))
    counts = sorted({point.world_size for line in lines.values() for _, point in line})
    handles = []
    figure, (ax,) = new_figure(
        1,
        "Epoch time against batch size",
        [
            f"{facet.title}, {facet.engine_text}; epoch = training samples / throughput",
            f"{_intervals(lines)}; faint: single launches",
            *notes,
        ],
        (len(lines) + 1) // 2,
    )
    for name, line in lines.items():
        family, _, count = name.rpartition(", N=")
        place = counts.index(int(count))
        look = Look(
            OKABE_ITO[families.index(family) % len(OKABE_ITO)],
            MARKERS[place % len(MARKERS)],
            DASHES[place % len(DASHES)],
        )
        for curve, point in line:
            single = [launch.epoch_s for launch in point.launches]
            ax.plot(
                [curve.batch] * len(single), single, linestyle="none", marker=look.marker,
                markersize=2.4, markeredgewidth=0, color=look.colour, alpha=0.28, zorder=2,
            )  # fmt: skip
        batches = [curve.batch for curve, _ in line]
        found = [point.epoch_s for _, point in line]
        ax.plot(batches, [interval.estimate for interval in found], zorder=4, **look.line)
        for batch, one in zip(batches, found, strict=True):
            if one.low is not None and one.high is not None:
                ax.plot([batch] * 2, [one.low, min(one.high, 1e300)], color=look.colour, lw=0.8)
        handles.append(handle(name, **look.line))
    ax.set_yscale("log")
    ax.set_ylabel("epoch time in s")
    log2_axis(ax, sorted({curve.batch for line in lines.values() for curve, _ in line}))
    weak = facet.curves[0].scaling == "weak"
    ax.set_xlabel("batch size of a rank" if weak else "global batch size")
    legend_below(figure, handles, 2)
    return Plot(figure, (*_points(facet), *_launches(facet)))


def _lines(facet: Facet) -> dict[str, Line]:
    """Group the points of all curves into lines, by label without batch and by device count."""
    lines: dict[str, Line] = {}
    for curve in facet.curves:
        name = curve.label.removesuffix(curve.batch_text).removesuffix(", ") or curve.engine
        for point in curve.points:
            lines.setdefault(f"{name}, N={point.world_size}", []).append((curve, point))
    return {
        name: sorted(line, key=lambda pair: (pair[0].batch, pair[1].placement))
        for name, line in sorted(lines.items(), key=lambda item: _order(item[0]))
    }


def _order(name: str) -> tuple[bool, str, int]:
    family, _, count = name.rpartition(", N=")
    return (not family.startswith("none"), family, int(count))


def _intervals(lines: dict[str, Line]) -> str:
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
