"""Several placements of one device count: one is in the line, the others stand beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from harness.analysis.facets import facets
from harness.analysis.frame import frame
from harness.analysis.plots.epoch import epoch_time
from harness.analysis.plots.isolated import allreduce
from harness.analysis.plots.over_devices import epoch_time_devices, exposed_sync_epoch, throughput
from harness.analysis.plots.placements import split
from harness.analysis.plots.series import Plot
from harness.analysis.plots.speedup import efficiency, speedup
from harness.analysis.plots.style import style
from harness.analysis.plots.sync import exposed_sync
from harness.analysis.scaling import Curve, curves
from harness.record import RunRecord
from tests import factories
from tests.factories import config, record

ENTRY = "same N placed otherwise (lines: on the fewest nodes)"
FIGURES = (
    speedup, efficiency, throughput, epoch_time_devices, exposed_sync, exposed_sync_epoch,
    allreduce, epoch_time,
)  # fmt: skip


def placed(placements: Sequence[str], batch: int = 75) -> list[RunRecord]:
    """Return two blocks of a base and of placements, each with a throughput of its own."""
    made = []
    for block in range(2):
        made.append(record(config("none", batch=batch), block, is_base=True, throughput=1000.0))
        for index, text in enumerate(placements, start=1):
            each = config("horovod", batch=batch, backend="mpi", placement=text)
            made.append(record(each, block, throughput=1000.0 + 100.0 * index + block))
    return made


def drawn(function: Any, records: Sequence[RunRecord]) -> Plot:
    (facet,) = facets(curves(frame(records)))
    with style():
        plot: Plot | None = function(facet, ())
    assert plot is not None
    return plot


def curve_of(records: Sequence[RunRecord]) -> Curve:
    return next(one for one in curves(frame(records)) if one.engine == "horovod")


def ends(line: Line2D) -> tuple[list[float], list[float]]:
    """Return the x and the y of a line."""
    xs, ys = (np.asarray(values, dtype=float).tolist() for values in line.get_data())
    return xs, ys


def joins(ax: Axes) -> list[list[float]]:
    """Return the x of the lines through estimates, with a marker at each."""
    return [
        ends(line)[0]
        for line in ax.get_lines()
        if line.get_linestyle() not in ("None", "none") and line.get_marker() not in ("None", "_")
    ]


def hollow(ax: Axes) -> list[tuple[float, float]]:
    return [
        (ends(line)[0][0], ends(line)[1][0])
        for line in ax.get_lines()
        if line.get_linestyle() == "None" and line.get_markerfacecolor() == "white"
    ]


def labels(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts if "→" not in text.get_text()]


@pytest.mark.parametrize("function", FIGURES)
def test_no_line_goes_straight_up_between_placements(function: Any) -> None:
    plot = drawn(function, placed(["2", "1+1"]))
    for ax in plot.figure.axes:
        assert all(len(set(xs)) == len(xs) for xs in joins(ax)), "two points of a line at one x"
        assert labels(ax) == ["2 nodes"]
        assert hollow(ax)
    assert ENTRY in [text.get_text() for text in plot.figure.legends[0].get_texts()]
    kept = {(row["devices"], row["placement"]) for row in plot.rows if row["engine"] == "horovod"}
    assert kept == {(2, "2"), (2, "1+1")}  # the CSV has both


@pytest.mark.parametrize("function", FIGURES)
def test_one_placement_a_count_needs_no_such_mark(function: Any) -> None:
    plot = drawn(function, placed(["2", "4", "8+8"]))
    assert [labels(ax) for ax in plot.figure.axes] == [[]] * len(plot.figure.axes)
    assert ENTRY not in [text.get_text() for text in plot.figure.legends[0].get_texts()]


def test_the_line_is_of_the_fewest_nodes_and_the_others_keep_their_values() -> None:
    plot = drawn(throughput, placed(["1+1", "2", "1+1+1+1", "2+2", "4"]))
    (ax,) = plot.figure.axes
    (line,) = (
        line
        for line in ax.get_lines()
        if len(ends(line)[0]) == 2 and line.get_marker() == "s" and line.get_linestyle() == "-"
    )
    xs, ys = ends(line)
    assert ys == pytest.approx([1200.5, 1500.5])
    assert labels(ax) == ["2 nodes", "2 nodes", "4 nodes"]
    assert sorted(y for _, y in hollow(ax)) == pytest.approx([1100.5, 1300.5, 1400.5])
    assert hollow(ax)[-1][1] == pytest.approx(1300.5)  # that of four nodes
    # Each a little to the left of the line's, and at another place than the one before it.
    at = (xs[0], xs[1], xs[1])
    assert all(0.9 < x / one < 1 for (x, _), one in zip(hollow(ax), at, strict=True))
    assert len({x for x, _ in hollow(ax)} | set(xs)) == 5


def test_as_many_nodes_are_told_apart_by_the_placement() -> None:
    points = curve_of(placed(["3+1", "2+2", "1+1+1+1+1+1+1+1", "2+1+1+1+1+1+1"])).points
    line, others = split(points)
    assert [point.world_size for point in line] == [4, 8]
    assert [point.nodes for point in line] == [2, 7]
    assert {line[0].placement, others[0].label} == {"3+1", "2+2"}
    assert others[1].label == "8 nodes"
    _, others = split(curve_of(placed(["7+1+1+1+1+1", "2+2+2+2+2+2"])).points)
    assert others[0].label in ("7+1+1+1+1+1", "2+2+2+2+2…")


def test_long_epochs_over_batches_have_one_placement_a_line() -> None:
    records = [*placed(["2", "1+1"]), *placed(["2", "1+1"], batch=700)]
    (ax,) = drawn(epoch_time, records).figure.axes
    assert labels(ax) == ["2 nodes", "2 nodes"]
    assert all(len(set(xs)) == len(xs) for xs in joins(ax))


def test_many_curves_have_a_panel_each_batch_and_the_same_marks() -> None:
    records = factories.records((1, 2), ("mpi",), (75, 150, 300, 600, 1200, 2400, 4800, 9600), 1)
    extra = config("horovod", batch=75, backend="mpi", placement="1+1")
    plot = drawn(speedup, [*records, record(extra)])
    assert labels(plot.figure.axes[0]) == ["2 nodes"]
    assert ENTRY in [text.get_text() for text in plot.figure.legends[0].get_texts()]
