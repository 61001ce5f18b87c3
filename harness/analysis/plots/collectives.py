"""Latency and bus bandwidth of a collective against its size, all libraries in one figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from harness.analysis.collectives import (
    Ring,
    csv_text,
    fit_ring,
    libraries_of,
    library_text,
    place_text,
    rows_of,
)
from harness.analysis.plots import check_formats, write_figures
from harness.analysis.plots.style import (
    INK,
    MARKERS,
    OKABE_ITO,
    figure_bytes,
    log2_axis,
    new_figure,
    style,
    unit_axis,
)
from harness.collectives.definitions import LIBRARIES, bus_factor
from harness.collectives.record import RECORD, CollectivesRecord, Row, read_record
from harness.collectives.sizes import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_APART = 2**0.12
_RING: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 3)), "linewidth": 0.8}


def draw(record: CollectivesRecord, collective: str) -> Figure | None:
    """Return the figure of a collective, inside ``style``; None where it has no sizes.

    Faint bars reach from the quickest iteration to the 99th percentile.
    """
    rows = [row for row in rows_of(record, collective) if row.bytes]
    if not rows:
        return None
    ring = fit_ring(record) if collective == "all_reduce" else None
    factor = bus_factor(collective, record.world_size)
    notes = [
        f"{place_text(record)}, {record.dtype}",
        "median over iterations of the slowest rank; faint: from the quickest to the 99th "
        f"percentile; busbw = bytes / median × {factor:.4g}",
        ring.text if ring else "",
        "no ring's line: a single size does not tell its latency and bandwidth apart"
        if collective == "all_reduce" and ring is None
        else "",
    ]
    names = libraries_of(rows)
    handles = [Line2D([], [], label=library_text(record, n), **_look(n)) for n in names]
    if ring:
        handles.append(Line2D([], [], label="ring's lower bound", **_RING))
    figure, (latency, bandwidth) = new_figure(
        2, f"{collective}: latency and bandwidth against size", notes, handles
    )
    for name in names:
        line = sorted((row for row in rows if row.library == name), key=lambda row: row.bytes)
        _draw(latency, bandwidth, line, factor)
    sizes = sorted({row.bytes for row in rows})
    if ring:
        _draw_ring(latency, bandwidth, ring, sizes, factor)
    _finish(latency, bandwidth, sizes)
    return figure


def plot_record(
    folder: Path | str, out_dir: Path | str, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Draw the figures of a result of ``hvdscale allreduce`` anew; return the files written.

    ``folder`` holds its ``record.json``. A barrier moves nothing and has no figure, only its CSV.
    Raises StoreError where the record cannot be read, AnalysisError where nothing can be written.
    """
    check_formats(formats)
    record = read_record(Path(folder) / RECORD)
    return write_figures(_files(record, formats), Path(out_dir))


def _files(record: CollectivesRecord, formats: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for collective in dict.fromkeys(row.collective for row in record.rows):
        with style():
            figure = draw(record, collective)
            images = [(kind, figure_bytes(figure, kind)) for kind in formats if figure is not None]
        for kind, content in images:
            yield f"{collective}.{kind}", content
        yield f"{collective}.csv", csv_text(record, collective).encode()


def _look(library: str) -> dict[str, Any]:
    index = LIBRARIES.index(library)
    return {"color": OKABE_ITO[index], "marker": MARKERS[index]}


def _draw(latency: Axes, bandwidth: Axes, line: Sequence[Row], factor: float) -> None:
    look = _look(line[0].library)
    sizes = [row.bytes for row in line]
    low, high = [r.latency_min_s for r in line], [r.latency_p99_s for r in line]
    # Side by side, or they would hide each other.
    beside = _APART ** (LIBRARIES.index(line[0].library) - 1)
    at = [size * beside for size in sizes]
    latency.vlines(at, low, high, color=look["color"], alpha=0.35, linewidth=1.6, zorder=2)
    latency.plot(sizes, [row.latency_p50_s for row in line], zorder=4, **look)
    rates = [factor * row.bytes / row.latency_p50_s for row in line]
    bandwidth.plot(sizes, rates, zorder=4, **look)


def _draw_ring(
    latency: Axes, bandwidth: Axes, ring: Ring, sizes: Sequence[int], factor: float
) -> None:
    # Straight on these axes but for its corner; a curve through other points would cut that off.
    points = [float(sizes[0]), float(sizes[-1])]
    if points[0] < ring.corner_bytes < points[1]:
        points.insert(1, ring.corner_bytes)
    times_s = [ring.seconds(size) for size in points]
    latency.plot(points, times_s, zorder=3, **_RING)
    rates = [factor * size / time_s for size, time_s in zip(points, times_s, strict=True)]
    bandwidth.plot(points, rates, zorder=3, **_RING)


def _finish(latency: Axes, bandwidth: Axes, sizes: Sequence[int]) -> None:
    for ax in (latency, bandwidth):
        log2_axis(ax, sizes, size_text)
        ax.set_yscale("log")
    unit_axis(latency, "s")
    unit_axis(bandwidth, "B/s")
    bandwidth.yaxis.set_major_formatter(EngFormatter(unit="B/s"))
    latency.set_ylabel("latency")
    bandwidth.set_ylabel("bus bandwidth")
    bandwidth.set_xlabel("size in bytes (K, M, G = 1024)")
