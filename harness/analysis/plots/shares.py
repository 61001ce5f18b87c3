"""What share of a step each phase has: one bar a point, of the phases' sum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from matplotlib.patches import Patch

from harness.analysis.facets import Facet
from harness.analysis.plots.phases import PHASES, bar_panels, bar_text, bars_in
from harness.analysis.plots.series import (
    Plot,
    Row,
    columns,
    identity,
    launch_rows,
    points_of,
    support,
)
from harness.analysis.plots.style import INK, new_figure
from harness.analysis.scaling import Curve, Launch, Point
from harness.stats import BlockKey, Interval, mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR = 0.72  # part of its line
_PERCENT = 100.0
_VISIBLE = 0.005  # of a bar
_FIELDS = (*((field, name) for field, name, _ in PHASES), ("exposed_sync_s", "exposed_sync"))


def phase_shares(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw one panel a batch, one bar a point; None where no launch has the sum of its phases.

    A share is a phase / the sum of the phases, launch by launch, so that a launch that was slow as
    a whole counts no more than the others.
    """
    measured = [c for c in facet.curves if any(map(_is_measured, c.points))]
    if not measured:
        return None
    panels, left_out = bar_panels(measured, _is_measured)
    figure, axes = new_figure(
        len(panels),
        "Share of a step in each phase",
        [
            f"{facet.title}, {facet.batch_text}, {facet.engine_text}",
            "a phase / the phases' sum, in instrumented steps after the window, means over ranks "
            "and launches; exposed sync: transfer + wait",
            facet.interval_text,
            _white(measured),
            _without(facet),
            left_out,
            *notes,
        ],
        [Patch(facecolor=colour, linewidth=0, label=name) for _, name, colour in PHASES],
        panels_in=bars_in(panels),
    )
    for ax, (text, points) in zip(axes, panels, strict=True):
        _draw(ax, points)
        ax.set_title(text, loc="left", pad=2)
    axes[0].annotate(
        "exposed sync", (1.0, 1.0), xycoords="axes fraction", xytext=(2, 2),
        textcoords="offset points", fontsize=5.2, color=INK, va="bottom",
    )  # fmt: skip
    axes[-1].set_xlabel("% of a step")
    return Plot(figure, (*_points(measured, facet), *_launches(measured, facet)))


def share_of(point: Point, field: str, level: float) -> Interval | None:
    """Return the share of a phase over blocks, 0 to 1; None where no launch has it and the sum."""
    blocks: dict[BlockKey, list[float]] = {}
    for launch in point.launches:
        share = _share(launch, field)
        if share is not None:
            blocks.setdefault(launch.block, []).append(share)
    if not blocks:
        return None
    found = mean_interval({block: fmean(values) for block, values in blocks.items()}, level)
    return found.sequential() if point.sequential else found


def _share(launch: Launch, field: str) -> float | None:
    value, total = getattr(launch, field), launch.phase_sum_s
    return None if value is None or not total else value / total


def _is_measured(point: Point) -> bool:
    return any(launch.phase_sum_s for launch in point.launches)


def _level(point: Point) -> float:
    return point.step_s.level


def _draw(ax: Axes, points: Sequence[tuple[Curve, Point]]) -> None:
    for line, (_, point) in enumerate(points):
        left = 0.0
        for field, _, colour in PHASES:
            share = share_of(point, field, _level(point))
            if share is not None:
                width = _PERCENT * share.estimate
                ax.barh(line, width, _BAR, left=left, color=colour, linewidth=0, zorder=2)
                left += width
        ax.text(
            _PERCENT + 1.5, line, _sync_text(point), fontsize=5.2, color=INK, va="center"
        )  # fmt: skip
    ax.set_yticks(range(len(points)), [bar_text(curve, point) for curve, point in points])
    ax.set_ylim(len(points) - 0.4, -0.6)  # the first on top
    ax.set_xlim(0, _PERCENT)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def _sync_text(point: Point) -> str:
    share = share_of(point, "exposed_sync_s", _level(point))
    if share is None:
        return "–"
    text = f"{_PERCENT * share.estimate:.1f} %"
    if share.low is None or share.high is None:
        return text
    # Student's interval knows no bounds, but a share has them.
    low, high = max(0.0, share.low), min(1.0, share.high)
    return f"{text} [{_PERCENT * low:.1f}, {_PERCENT * high:.1f}]"


def _white(curves: Sequence[Curve]) -> str:
    """Say what a bar that ends early lacks; nothing where a reader could not see it."""
    for _, point in points_of(curves):
        shares = [share_of(point, field, _level(point)) for field, _, _ in PHASES]
        named = sum(share.estimate for share in shares if share is not None)
        if point.world_size == 1 and _is_measured(point) and 1.0 - named > _VISIBLE:
            return "white at a bar's end: one rank's time between backward and update, no phase"
    return ""


def _without(facet: Facet) -> str:
    """Name what has phases but no sum of them."""
    lacking = [
        curve.label
        for curve in facet.curves
        if any((p.update_s or p.data_s) and not _is_measured(p) for p in curve.points)
    ]
    return f"no shares, not all phases could be marked: {'; '.join(lacking)}" if lacking else ""


def _points(curves: Sequence[Curve], facet: Facet) -> list[Row]:
    found = []
    for curve, point in points_of(curves):
        if _is_measured(point):
            row: Row = {"row": "point", **identity(facet, curve, point)}
            for field, name in _FIELDS:
                row |= columns(f"{name}_share", "", share_of(point, field, _level(point)))
            found.append(row | support(share_of(point, "update_s", _level(point))))
    return found


def _launches(curves: Sequence[Curve], facet: Facet) -> tuple[Row, ...]:
    every = [
        (identity(facet, curve, point), launch)
        for curve, point in points_of(curves)
        for launch in point.launches
        if launch.phase_sum_s
    ]
    shares = {f"{name}_share": partial(_share, field=field) for field, name in _FIELDS}
    return launch_rows(every, {**shares, "phase_sum_s": "phase_sum_s"})
