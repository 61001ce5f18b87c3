"""Batches an epoch: how often gradients are synchronised, against the device count or the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.analysis.facets import Facet
from harness.analysis.plots.multiples import MOST_LINES, counts_of, thinned
from harness.analysis.plots.series import (
    Plot,
    Row,
    batches_an_epoch,
    handle,
    node_boundaries,
    points_of,
)
from harness.analysis.plots.style import (
    DASHES,
    INK,
    MARKERS,
    OKABE_ITO,
    device_axis,
    log2_axis,
    new_figure,
    unit_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAD = 1.3
Counts = dict[int, dict[int, float]]  # batch → device count → batches an epoch


def batches(facet: Facet, notes: Sequence[str]) -> Plot:
    """Draw one line a batch over N; over the batch where there is a single device count."""
    found = _counts(facet)
    shown = {batch: found[batch] for batch in thinned(sorted(found), MOST_LINES)}
    over_batch = len({n for line in found.values() for n in line}) == 1 and len(found) > 1
    looks: dict[int, dict[str, Any]] = {
        batch: {
            "color": OKABE_ITO[index % len(OKABE_ITO)],
            "marker": MARKERS[index % len(MARKERS)],
            "linestyle": DASHES[index % len(DASHES)],
        }
        for index, batch in enumerate(shown)
    }
    texts = {curve.batch: curve.batch_text for curve in facet.curves}
    handles = [] if over_batch else [handle(texts[b], **look) for b, look in looks.items()]
    some = not over_batch and len(shown) < len(found)
    left_out = f"{len(shown)} of {len(found)} batches are drawn; the CSV has all" if some else ""
    figure, (ax,) = new_figure(
        1,
        "Batches an epoch",
        [
            f"{facet.title}, {facet.batch_text}",
            "training samples / (N × batch of a rank), each one synchronisation of the gradients; "
            "a count: no interval",
            left_out,
            *notes,
        ],
        handles,
    )
    if over_batch:
        _draw_over_batch(ax, facet, found)
    else:
        for batch, line in shown.items():
            ax.plot(list(line), list(line.values()), zorder=4, **looks[batch])
        device_axis(ax, counts_of(facet.curves))
        node_boundaries(ax, facet.curves)
    values = [v for line in found.values() for v in line.values()]
    ax.set_yscale("log")
    ax.set_ylim(min(values) / _PAD, max(values) * _PAD)
    unit_axis(ax)
    ax.set_ylabel("batches an epoch")
    return Plot(figure, _rows(facet))


def _draw_over_batch(ax: Axes, facet: Facet, found: Counts) -> None:
    sizes = sorted(found)
    values = [value for batch in sizes for value in found[batch].values()]
    ax.plot(sizes, values, color=INK, marker=MARKERS[0], zorder=4)
    log2_axis(ax, sizes)
    (n,) = counts_of(facet.curves)
    weak = facet.curves[0].scaling == "weak"
    ax.set_xlabel(f"{'batch size of a rank' if weak else 'global batch size'}, N={n}")


def _counts(facet: Facet) -> Counts:
    found: Counts = {}
    for curve, point in points_of(facet.curves):
        line = found.setdefault(curve.batch, {})
        line[point.world_size] = batches_an_epoch(point.launches[0])
    return {batch: dict(sorted(line.items())) for batch, line in found.items()}


def _rows(facet: Facet) -> tuple[Row, ...]:
    first = facet.curves[0]
    shared = {"workload": first.workload, "framework": first.framework, "scaling": first.scaling}
    return tuple(
        {"row": "point", **shared, "batch": batch, "devices": n, "batches_an_epoch": value}
        for batch, line in sorted(_counts(facet).items())
        for n, value in line.items()
    )
