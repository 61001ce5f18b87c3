"""What the plots share: how a curve is drawn and named, and the rows of the CSV behind it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from harness.analysis.facets import Facet
from harness.analysis.plots.style import (
    COLOURS,
    DASHES,
    FAINT,
    INK,
    MARKERS,
    OKABE_ITO,
    figure_bytes,
    style,
)
from harness.analysis.scaling import Curve, Launch, Point
from harness.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Row = dict[str, Any]
_LABEL_SHARE = 0.13  # of an axis that the label of a boundary takes
_BESIDE, _BESIDE_DODGED = 2**0.07, 2**0.045
Name = TypeVar("Name", bound=Hashable)
_DODGE, _DODGED = 0.05, 0.16  # octaves between two neighbours at most, and between the outer ones


@dataclass(frozen=True)
class Plot:
    """A figure and the rows of the CSV behind it, which hold every number drawn."""

    figure: Figure
    rows: tuple[Row, ...]

    def csv_text(self) -> str:
        """Return the rows as CSV; numbers have nine digits, more than any measurement has."""
        buffer = io.StringIO()
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        writer = csv.DictWriter(buffer, columns, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({key: _text(value) for key, value in row.items()})
        return buffer.getvalue()

    @property
    def title(self) -> str:
        """Return what stands over the figure."""
        return str(self.figure.get_label())

    def image(self, kind: str) -> bytes:
        """Return the figure as a file's content: ``png``, ``svg`` or ``pdf``."""
        with style():
            return figure_bytes(self.figure, kind)


@dataclass(frozen=True)
class Look:
    """Colour, marker and dashes of a curve, and how far beside its x it is drawn (factors)."""

    colour: str
    marker: str
    dashes: Any
    shift: float = 1.0  # of estimates and their intervals
    beside: float = _BESIDE  # of launches, from their estimate, which would hide them

    @property
    def line(self) -> dict[str, Any]:
        """Return the arguments of ``Axes.plot``."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes}


def looks(curves: Sequence[Curve]) -> dict[str, Look]:
    """Return a look for each curve, by its label.

    The colour tells the kind of curve, the dashes tell the batch. The markers go on from curve to
    curve, so that no two look alike in a grey print.
    """
    colour = kind_colours(curves)
    batches = list(dict.fromkeys(curve.batch for curve in curves))
    return dodged(
        {
            curve.label: Look(
                colour[kind(curve)],
                _marker(index),
                DASHES[batches.index(curve.batch) % len(DASHES)],
            )
            for index, curve in enumerate(curves)
        }
    )


def kind_looks(curves: Sequence[Curve]) -> dict[str, Look]:
    """Return a look for each kind of curve, by its name, where each batch has its own axes."""
    return dodged(
        {
            name: Look(colour, _marker(index), DASHES[index // len(OKABE_ITO) % len(DASHES)])
            for index, (name, colour) in enumerate(kind_colours(curves).items())
        }
    )


def _marker(index: int) -> str:
    """Return the marker of a curve; the second round begins at the second one.

    So the eighth of seven colours and seven markers is not the first again.
    """
    return MARKERS[(index + index // len(MARKERS)) % len(MARKERS)]


def dodged(found: Mapping[Name, Look]) -> dict[Name, Look]:
    """Return looks that stand a little beside one another, so that no interval hides another.

    On an axis that is logarithmic to base 2; at most by 6 % to either side, so a point is still at
    the tick of its count and keeps its place by the ideal line. The CSV has the counts as they are.
    """
    if len(found) < 2:
        return dict(found)
    step = min(_DODGE, _DODGED / (len(found) - 1))
    middle = (len(found) - 1) / 2
    return {
        name: replace(look, shift=2 ** (step * (index - middle)), beside=_BESIDE_DODGED)
        for index, (name, look) in enumerate(found.items())
    }


def kind(curve: Curve) -> str:
    """Return the label of a curve without its batch, e.g. ``mpi``, or ``ddp, gloo``."""
    return curve.label.removesuffix(curve.batch_text).removesuffix(", ") or curve.engine


def kind_colours(curves: Sequence[Curve]) -> dict[str, str]:
    """Return the colour of each kind: that of its engine and backend where no two share one."""
    kinds = {kind(curve): (curve.engine, curve.backend) for curve in curves}
    if len(set(kinds.values())) == len(kinds) and all(pair in COLOURS for pair in kinds.values()):
        return {name: COLOURS[pair] for name, pair in kinds.items()}
    return {name: OKABE_ITO[i % len(OKABE_ITO)] for i, name in enumerate(kinds)}


def node_boundaries(ax: Axes, curves: Iterable[Curve], labelled: bool = True) -> None:
    """Mark where the next device count needs one node more than the last.

    Where one count was placed on several numbers of nodes there is no one boundary to mark. The
    labels stand above the axes, where no data is; those that would touch are left out.
    """
    nodes: dict[int, set[int]] = {}
    for curve in curves:
        for point in curve.points:
            nodes.setdefault(point.world_size, set()).add(point.nodes)
    counts = sorted(nodes)
    octaves = math.log2(counts[-1] / counts[0]) + 0.7
    free = 0.0
    for before, after in pairwise(counts):
        if max(nodes[before]) < min(nodes[after]):
            x = math.sqrt(before * after)
            ax.axvline(x, color=FAINT, linewidth=0.6, linestyle=(0, (1, 2)), zorder=1)
            if labelled and x >= free:
                free = x * 2 ** (_LABEL_SHARE * octaves)
                ax.annotate(
                    f"{min(nodes[after])} nodes →", (x, 1.0), xycoords=("data", "axes fraction"),
                    xytext=(0, 1), textcoords="offset points", fontsize=5, color=FAINT,
                    ha="left", va="bottom",
                )  # fmt: skip
    if labelled and free and ax.get_title(loc="left"):
        ax.set_title(ax.get_title(loc="left"), loc="left", pad=8)  # above the labels


def handle(label: str, **line: Any) -> Line2D:
    """Return a legend entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **line)


def ideal_handle() -> Line2D:
    """Return the legend entry of the ideal line."""
    return handle("ideal", color=INK, linestyle=(0, (4, 3)), linewidth=0.8)


def identity(facet: Facet, curve: Curve, point: Point) -> Row:
    """Return the columns that say which point a row is of."""
    return {
        "curve": curve.label, "workload": curve.workload, "framework": curve.framework,
        "engine": curve.engine, "backend": curve.backend, "device": curve.device,
        "scaling": curve.scaling, "batch": curve.batch, "rank_batch": point.rank_batch,
        "devices": point.world_size, "nodes": point.nodes, "placement": point.placement,
        "base": None if curve.base is None else str(curve.base),
    }  # fmt: skip


def columns(name: str, unit: str, interval: Interval | None) -> Row:
    """Return an interval's columns: ``speedup``, ``speedup_low``, ``speedup_high`` and so on."""
    suffix = f"_{unit}" if unit else ""
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {
        f"{name}{suffix}": interval.estimate if interval else None,
        f"{name}_low{suffix}": low,
        f"{name}_high{suffix}": high,
    }


def support(interval: Interval | None) -> Row:
    """Return what an interval rests on."""
    if interval is None:
        return {"values": 0, "level": None, "method": "not measured"}
    level = interval.level if interval.has_interval else None
    return {"values": interval.n, "level": level, "method": interval.method}


def intervals_text(intervals: Sequence[Interval]) -> str:
    """Say what intervals of one level rest on, and that some have none."""
    methods = sorted({one.method for one in intervals if one.has_interval})
    level = f"{100 * intervals[0].level:.0f} % intervals: {', '.join(methods)}" if methods else ""
    single = "" if all(one.has_interval for one in intervals) else "one block: no interval"
    return "; ".join(text for text in (level, single) if text)


def check_columns(check: Interval | None) -> Row:
    """Return the columns of a signed-rank check; empty below six blocks."""
    ends = (check.low, check.high, check.level) if check else (None, None, None)
    return dict(
        zip(("signed_rank_low", "signed_rank_high", "signed_rank_level"), ends, strict=True)
    )


def launch_rows(
    rows: Iterable[tuple[Row, Launch]], names: Mapping[str, str | Callable[[Launch], Any]]
) -> tuple[Row, ...]:
    """Return one row a launch: the faint points.

    ``names`` maps columns to fields of Launch, or to what is computed of one.
    """
    return tuple(
        {"row": "launch", **point, **{col: _value(launch, of) for col, of in names.items()},
         "run_id": launch.run_id, "allocation": launch.block[0], "repeat": launch.block[1]}
        for point, launch in rows
    )  # fmt: skip


def _value(launch: Launch, of: str | Callable[[Launch], Any]) -> Any:
    return getattr(launch, of) if isinstance(of, str) else of(launch)


def points_of(curves: Iterable[Curve]) -> Iterator[tuple[Curve, Point]]:
    """Yield every point with its curve."""
    for curve in curves:
        for point in curve.points:
            yield curve, point


def batches_an_epoch(launch: Launch) -> float:
    """Return how many global batches an epoch has: training samples / (N·B).

    That is also how often gradients are synchronised. Epoch time is training samples / throughput,
    and throughput N·B / step, so it is the one by the other.
    """
    return launch.epoch_s / launch.step_s


def _text(value: Any) -> Any:
    return f"{value:.9g}" if isinstance(value, float) else value
