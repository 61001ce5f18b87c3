"""Figures against the device count: fitted lines, ideals, shares, telemetry; many curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.analysis.facets import Facet, facets
from harness.analysis.frame import frame
from harness.analysis.plots.batches import batches
from harness.analysis.plots.epoch import epoch_time
from harness.analysis.plots.isolated import allreduce
from harness.analysis.plots.multiples import MOST_LINES, MOST_PANELS, by_batch, few, thinned
from harness.analysis.plots.over_devices import (
    epoch_time_devices,
    exposed_sync_epoch,
    throughput,
)
from harness.analysis.plots.phases import phases
from harness.analysis.plots.reference import IDEAL, slope_text
from harness.analysis.plots.series import Plot
from harness.analysis.plots.shares import phase_shares
from harness.analysis.plots.speedup import efficiency, speedup
from harness.analysis.plots.style import DPI, style
from harness.analysis.plots.telemetry import utilisation
from harness.analysis.scaling import curves
from harness.record import DeviceTelemetry, NodeTelemetry, RunRecord, Telemetry
from tests import factories
from tests.factories import config, record
from tests.unit.test_table import check_golden


def _facet(records: Sequence[RunRecord]) -> Facet:
    (facet,) = facets(curves(frame(records)))
    return facet


def _draw(function: Any, records: Sequence[RunRecord]) -> Plot:
    with style():
        plot: Plot | None = function(_facet(records), ())
    assert plot is not None
    return plot


def _said(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.texts)


def _legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def _lines(ax: Axes, width: float) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        for line in ax.get_lines()
        if line.get_linewidth() == width and len(line.get_xdata()) > 1
        and line.get_linestyle() != "None"  # launches
    ]  # fmt: skip


def _ideals(ax: Axes) -> list[list[tuple[float, float]]]:
    found = [line for line in ax.get_lines() if line.get_color() == IDEAL["color"]]
    return [
        [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        for line in found
    ]


def _alike(found: Sequence[tuple[float, float]], wanted: Sequence[tuple[float, float]]) -> None:
    assert np.array(found) == pytest.approx(np.array(wanted))


def straight(slopes: Sequence[float], intercept: float) -> list[RunRecord]:
    """Return blocks in which S is a straight line over 1, 2, 4 and 8 devices."""
    made = []
    for block, slope in enumerate(slopes):
        made.append(record(config("none"), block, is_base=True, throughput=1000.0))
        for n in (1, 2, 4, 8):
            rate = 1000.0 * (slope * n + intercept)
            made.append(record(config("horovod", n, backend="mpi"), block, throughput=rate))
    return made


def test_the_fitted_line_has_its_slope_and_its_intercept() -> None:
    plot = _draw(speedup, straight((0.5, 0.6), 0.3))
    (line,) = _lines(plot.figure.axes[0], 0.45)
    assert [line[0][0], line[-1][0]] == pytest.approx([1, 8])
    for n, speed in line:
        assert speed == pytest.approx(0.55 * n + 0.3)
    row = next(row for row in plot.rows if row["engine"] == "horovod")
    assert (row["slope"], row["intercept"]) == pytest.approx((0.55, 0.3))
    # Two values 0.1 apart: half of the interval is t(0.975, 1) · 0.05.
    assert row["slope_high"] - 0.55 == pytest.approx(12.7062 * 0.05, rel=1e-4)
    assert row["intercept_low"] == pytest.approx(0.3) == row["intercept_high"]
    assert _legend(plot.figure)[:2] == [
        "mpi, batch 75 (slope 0.55 [−0.09, 1.19])", "line fitted to S against N",
    ]  # fmt: skip


def test_efficiencys_line_is_the_same_divided_by_n() -> None:
    plot = _draw(efficiency, straight((0.5, 0.6), 0.3))
    (line,) = _lines(plot.figure.axes[0], 0.45)
    for n, found in line:
        assert found == pytest.approx(0.55 + 0.3 / n)


def test_two_device_counts_have_no_fitted_line() -> None:
    records = [one for one in straight((0.5,), 0.3) if one.config.world_size < 4]
    plot = _draw(speedup, records)
    assert _lines(plot.figure.axes[0], 0.45) == []
    assert _legend(plot.figure) == ["mpi, batch 75", "ideal"]
    assert slope_text(_facet(records).curves[-1]) == ""


def test_the_ideal_throughput_is_the_bases_times_n() -> None:
    records = [
        *straight((0.5,), 0.3),
        record(config("none", batch=700), is_base=True, throughput=4000.0),
        record(config("horovod", 4, 700, backend="mpi"), throughput=9000.0),
        record(config("horovod", 4, 700, backend="gloo"), throughput=8000.0),
    ]
    small, large = _draw(throughput, records).figure.axes
    assert (small.get_title(loc="left"), large.get_title(loc="left")) == ("batch 75", "batch 700")
    for ax, rate in ((small, 1000.0), (large, 4000.0)):
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        (ideal,) = _ideals(ax)  # once, for all curves of one base
        for n, found in ideal:
            assert found == pytest.approx(rate * n)
    low, high = small.get_ylim()
    assert low < 800 < 8000 < high


def test_the_ideal_epoch_is_the_bases_divided_by_n() -> None:
    (ax,) = _draw(epoch_time_devices, straight((0.5,), 0.3)).figure.axes
    (ideal,) = _ideals(ax)
    for n, found in ideal:
        assert found == pytest.approx(750.0 / n)


@pytest.mark.parametrize("function", [throughput, epoch_time_devices])
def test_without_a_base_there_is_no_ideal_and_it_is_said(function: Any) -> None:
    plot = _draw(function, factories.records((1, 2), ("mpi",), (75,), blocks=1, base=None))
    assert _ideals(plot.figure.axes[0]) == []
    assert "no ideal: there is no base" in _said(plot.figure)
    assert "ideal" not in _legend(plot.figure)


def test_a_curve_without_a_base_is_named_beside_those_that_have_one() -> None:
    records = [*straight((0.5,), 0.3), record(config("horovod", 2, 700, backend="mpi"))]
    plot = _draw(speedup, records)
    assert "no S: mpi, batch 700 (no launch is its base none@1)" in _said(plot.figure)


def test_sync_an_epoch_is_that_of_a_step_times_the_batches() -> None:
    made = config("horovod", 2, backend="mpi")
    plot = _draw(exposed_sync_epoch, [record(made), record(made, 1)])
    row = plot.rows[0]
    assert row["batches_an_epoch"] == pytest.approx(5000)  # 750,000 / (2 · 75)
    assert row["exposed_sync_epoch_s"] == pytest.approx(300e-6 * 5000)
    launch = next(row for row in plot.rows if row["row"] == "launch")
    assert launch["exposed_sync_epoch_s"] == pytest.approx(1.5)


def test_batches_an_epoch_fall_with_n() -> None:
    plot = _draw(batches, factories.records((1, 2, 16), ("mpi", "gloo"), (75, 750), blocks=1))
    found = {(row["batch"], row["devices"]): row["batches_an_epoch"] for row in plot.rows}
    assert found == pytest.approx({
        (75, 1): 10_000, (75, 2): 5000, (75, 16): 625, (750, 1): 1000, (750, 2): 500,
        (750, 16): 62.5,
    })  # fmt: skip
    assert _legend(plot.figure) == ["batch 75", "batch 750"]


def test_batches_of_a_single_device_count_are_over_the_batch() -> None:
    plot = _draw(batches, [record(config("none", 1, batch)) for batch in (75, 150, 700)])
    (ax,) = plot.figure.axes
    assert ax.get_xlabel() == "batch size of a rank, N=1"
    (line,) = _lines(ax, 1.1)
    _alike(line, [(75, 10_000), (150, 5000), (700, 750_000 / 700)])


def test_shares_are_of_the_phases_sum_and_fill_the_bar() -> None:
    made = config("horovod", 2, backend="mpi")
    plot = _draw(phase_shares, [record(made), record(made, 1, factor=0.5)])
    (ax,) = plot.figure.axes
    ends = [piece.get_x() + piece.get_width() for piece in ax.patches]
    assert max(ends) == pytest.approx(100)
    # 0.7007 ms in phases that compute and 300 µs of sync, in each launch alike.
    share = 300 / (0.98 * 715 + 300)
    row = plot.rows[0]
    assert row["exposed_sync_share"] == pytest.approx(share)
    assert row["transfer_share"] + row["wait_share"] == pytest.approx(share)
    assert row["forward_share"] == pytest.approx(0.3 * 715 / (0.98 * 715 + 300))
    assert ax.texts[0].get_text() == "30.0 % [30.0, 30.0]"


def test_a_bar_that_ends_early_says_what_it_lacks() -> None:
    one = record(config("horovod", 1, backend="mpi"))
    assert one.phases is not None
    assert one.phases.sum_s is not None
    longer = one.phases.model_copy(update={"sum_s": 1.1 * one.phases.sum_s})
    gap = record(config("horovod", 1, backend="mpi"), phases=longer)
    assert "white at a bar's end" in _said(_draw(phase_shares, [gap]).figure)
    assert "white" not in _said(_draw(phase_shares, [one]).figure)


def test_an_interval_of_a_share_ends_where_shares_do() -> None:
    made = config("horovod", 2, backend="mpi")
    one = record(made).phases
    assert one is not None
    less = one.model_copy(update={"exposed_sync_s": 0.0, "transfer_s": 0.0, "wait_s": 0.0})
    plot = _draw(phase_shares, [record(made), record(made, 1, phases=less)])
    assert plot.figure.axes[0].texts[0].get_text().endswith("% [0.0, 100.0]")
    assert plot.rows[0]["exposed_sync_share_low"] < 0  # the CSV has what was computed


def test_phases_without_a_sum_have_no_shares_and_are_named() -> None:
    made = config("ddp", 2, backend="gloo")
    one = record(made).phases
    assert one is not None
    lacking = one.model_copy(update={"forward_s": None, "sum_s": None})
    whole = record(config("horovod", 2, backend="mpi"))
    plot = _draw(phase_shares, [record(made, phases=lacking), whole])
    assert "not all phases could be marked: ddp, gloo, batch 75" in _said(plot.figure)
    assert {row["engine"] for row in plot.rows} == {"horovod"}
    with style():
        assert phase_shares(_facet([record(made, phases=lacking)]), ()) is None


def told(n: int, busy: float, *, gpu: bool) -> Telemetry:
    """Return telemetry of ``n`` ranks on a node of 64 cores, each device at 70 W + 300 W · busy."""
    devices = [
        DeviceTelemetry(
            index=index, uuid=f"GPU-{index}", name="GPU", samples=50, utilisation_mean=busy,
            sm_activity_mean=None, memory_used_max_bytes=None, power_mean_w=70 + 300 * busy,
            energy_j=None, energy_per_sample_j=None, sm_clock_mean_mhz=None, throttle_reasons=None,
        )
        for index in range(n if gpu else 0)
    ]  # fmt: skip
    node = NodeTelemetry(
        host="node0", samples=50, interval_s=0.1, cpu_utilisation_mean=n * busy / 64,
        rank_cpu_mean=(busy,) * n, rank_rss_max_bytes=(10**9,) * n, devices=tuple(devices),
    )  # fmt: skip
    power_w = n * (70 + 300 * busy) if gpu else None
    return Telemetry(nodes=(node,), power_mean_w=power_w, energy_per_sample_j=None)


def watched(*, gpu: bool) -> list[RunRecord]:
    return [
        record(config("horovod", n, backend="mpi"), block, telemetry=told(n, busy, gpu=gpu))
        for n, level in ((1, 0.9), (2, 0.6), (16, 0.3))
        for block, busy in enumerate((level - 0.1, level + 0.1))
    ]


def test_utilisation_and_power_of_gpus() -> None:
    plot = _draw(utilisation, watched(gpu=True))
    busy, power = plot.figure.axes
    assert (busy.get_ylabel(), power.get_ylabel()) == ("GPU utilisation in %", "W a device")
    assert plot.title == "GPU utilisation and power"
    _alike(_lines(busy, 1.1)[0], [(1, 90), (2, 60), (16, 30)])
    _alike(_lines(power, 1.1)[0], [(1, 340), (2, 250), (16, 160)])
    assert busy.get_ylim()[1] > 100
    check_golden("utilisation.csv", plot.csv_text())


def test_without_a_gpu_it_is_the_processor_and_it_is_said() -> None:
    plot = _draw(utilisation, watched(gpu=False))
    cores, node = plot.figure.axes
    assert "no GPU told anything: the processor" in _said(plot.figure)
    assert (cores.get_ylabel(), node.get_ylabel()) == ("busy cores a rank", "nodes' cores in %")
    _alike(_lines(cores, 1.1)[0], [(1, 0.9), (2, 0.6), (16, 0.3)])
    _alike(_lines(node, 1.1)[0], [(1, 90 / 64), (2, 120 / 64), (16, 480 / 64)])
    assert all(row["gpu_power_w"] is None for row in plot.rows)


def test_without_telemetry_there_is_no_figure_of_it() -> None:
    with style():
        assert utilisation(_facet([record(config("none"))]), ()) is None


def test_the_isolated_all_reduce_of_a_sweep() -> None:
    made = [config("horovod", n, backend="mpi") for n in (1, 2, 16)]
    plot = _draw(allreduce, [record(one) for one in made])
    latency, bandwidth = plot.figure.axes
    p50_s = 0.6 * 150e-6 * 2  # factories: 60 % of the exposed sync
    assert _lines(latency, 1.1)[0][0] == pytest.approx((2, p50_s))
    assert _lines(bandwidth, 1.1)[0][0] == pytest.approx((2, 613_764 / p50_s))
    assert "613,764 bytes of gradient" in _said(plot.figure)
    assert {row["devices"] for row in plot.rows} == {2, 16}
    with style():
        assert allreduce(_facet([record(config("none"))]), ()) is None


@given(st.lists(st.integers(), unique=True, min_size=1), st.integers(2, 9))
def test_thinning_keeps_the_ends_and_the_order(values: list[int], most: int) -> None:
    found = thinned(values, most)
    assert len(found) == min(most, len(values))
    assert (found[0], found[-1]) == (values[0], values[-1])
    assert found == [value for value in values if value in set(found)]


def _tunings(count: int, counts: Sequence[int] = (1, 2)) -> list[RunRecord]:
    base = record(config("none"), is_base=True)
    every = [
        record(config("horovod", n, backend="mpi", horovod={"cycle_time_ms": cycle}))
        for cycle in range(1, count + 1)
        for n in counts
    ]
    return [base, *every]


def test_many_curves_are_spread_over_axes_and_all_are_named() -> None:
    plot = _draw(speedup, _tunings(20))
    assert len(plot.figure.axes) == 3
    for ax in plot.figure.axes:
        assert 0 < len(_lines(ax, 1.1)) <= MOST_LINES
    names = _legend(plot.figure)
    assert [f"mpi, cycle {cycle} ms" in names for cycle in range(1, 21)] == [True] * 20
    assert "throughput: in its own figure" in _said(plot.figure)
    looks = {(h.get_color(), h.get_marker(), str(h.get_linestyle())) for h in
             plot.figure.legends[0].legend_handles}  # fmt: skip
    assert len(looks) == len(names)  # no two look alike


def test_what_many_batches_leave_out_is_said() -> None:
    found = _facet([record(config("none", 1, batch)) for batch in range(10, 30)]).curves
    panels = by_batch(found)
    assert len(panels.groups) == MOST_PANELS
    assert (panels.groups[0][0].batch, panels.groups[-1][0].batch) == (10, 29)
    assert panels.note == "8 of 20 curves are drawn; the CSV has all"
    drawn, note = few(found)
    assert [curve.batch for curve in drawn] == [10]
    assert note == "drawn: none, batch 10, 1 of 20 curves; the CSV has all"


def test_many_bars_leave_out_device_counts_and_the_csv_has_all() -> None:
    records = factories.records((1, 2, 4, 8), ("mpi", "gloo"), tuple(range(10, 20)), blocks=1)
    plot = _draw(phases, records)
    assert sum(len(ax.get_yticks()) for ax in plot.figure.axes) == 2 * 2 * 10 + 10
    assert "50 of 90 points are drawn; the CSV has all" in _said(plot.figure)
    assert sum(row["row"] == "point" for row in plot.rows) == 90


def test_many_curves_of_one_batch_have_no_figure_over_batches() -> None:
    with style():
        assert epoch_time(_facet(_tunings(9)), ()) is None


def test_no_text_is_cut_at_the_figures_edge() -> None:
    """Long names in legend and notes, and labels of nodes at the right edge."""
    records = [
        record(
            config(
                "horovod", n, backend="mpi", cores_per_rank=cores,
                horovod={"cycle_time_ms": 0.25, "fusion_threshold_mb": cores, "cache_capacity": 0},
                execution={"channels_last": cores > 1},
            ),
            node=1,
        )
        for cores in (1, 2)
        for n in (1, 2, 4)
    ]  # fmt: skip
    for function in (speedup, phases):
        with style():
            plot = function(_facet(records), ("a note of wide letters: " + "W" * 60 + " and more",))
            assert plot is not None
            plot.figure.set_dpi(DPI)  # coarser pixels would make letters wider
            canvas = FigureCanvasAgg(plot.figure)
            canvas.draw()
        texts = [*plot.figure.texts, *plot.figure.legends[0].get_texts()]
        texts += [text for ax in plot.figure.axes for text in (*ax.texts, *ax.get_yticklabels())]
        for text in texts:
            box = text.get_window_extent(canvas.get_renderer())
            assert -1 <= box.x0 <= box.x1 <= plot.figure.bbox.x1 + 1, text.get_text()
