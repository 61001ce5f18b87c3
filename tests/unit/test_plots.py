from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.markers import CARETDOWN, CARETUP

from harness.analysis import plot_all
from harness.analysis.facets import facets
from harness.analysis.flags import figure_flags
from harness.analysis.frame import frame
from harness.analysis.plots import PLOTS
from harness.analysis.plots.batches import batches
from harness.analysis.plots.epoch import epoch_time
from harness.analysis.plots.isolated import allreduce
from harness.analysis.plots.over_devices import (
    epoch_time_devices,
    exposed_sync_epoch,
    throughput,
)
from harness.analysis.plots.phases import phases
from harness.analysis.plots.series import Look, Plot, dodged, kind_colours
from harness.analysis.plots.shares import phase_shares
from harness.analysis.plots.speedup import efficiency, speedup
from harness.analysis.plots.style import OKABE_ITO, WIDTH_IN, figure_bytes, style
from harness.analysis.plots.sync import exposed_sync
from harness.analysis.scaling import curves
from harness.errors import AnalysisError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, failure, record
from tests.unit.test_table import check_golden

#: What any sweep of several ranks has; ``utilisation`` needs telemetry beside it.
FIGURES = {
    "speedup": speedup, "efficiency": efficiency, "throughput": throughput,
    "exposed_sync": exposed_sync, "exposed_sync_epoch": exposed_sync_epoch, "phases": phases,
    "phase_shares": phase_shares, "epoch_time": epoch_time,
    "epoch_time_devices": epoch_time_devices, "batches": batches, "allreduce": allreduce,
}  # fmt: skip
MARKED = ("exposed_sync", "exposed_sync_epoch", "phases", "phase_shares")


def _draw(name: str, records: Sequence[RunRecord]) -> Plot | None:
    (facet,) = facets(curves(frame(records)))
    with style():
        return FIGURES[name](facet, ())


def _svg(plot: Plot) -> str:
    with style():
        return figure_bytes(plot.figure, "svg").decode()


def _texts(plot: Plot) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", _svg(plot))


@pytest.fixture(scope="module")
def sweep() -> list[RunRecord]:
    return factories.records((1, 2, 16), blocks=3)


@pytest.mark.parametrize("name", FIGURES)
def test_the_numbers_behind_a_figure(name: str, sweep: list[RunRecord]) -> None:
    check_golden(f"{name}.csv", _draw(name, sweep).csv_text())


def test_a_csv_holds_every_launch_beside_the_points(sweep: list[RunRecord]) -> None:
    rows = list(csv.DictReader(_draw("speedup", sweep).csv_text().splitlines()))
    launches = [row for row in rows if row["row"] == "launch"]
    assert len(launches) == len(sweep)
    assert {row["run_id"] for row in launches} == {one.run_id for one in sweep}
    point = next(row for row in rows if row["curve"] == "mpi, batch 75" and row["devices"] == "16")
    assert float(point["efficiency"]) == pytest.approx(float(point["speedup"]) / 16)
    assert float(point["speedup_low"]) < float(point["speedup"]) < float(point["speedup_high"])


def test_a_figure_says_scaling_base_and_what_its_intervals_rest_on(
    sweep: list[RunRecord],
) -> None:
    texts = _texts(_draw("speedup", sweep))
    said = " ".join(texts)
    for part in (
        "stress_strain (torch), weak scaling, CPU, batch a rank constant", "base none@1",
        "95 % intervals: t, 3 blocks of one allocation", "samples/s", "speedup S", "devices N",
        "mpi, batch 700 (slope ", "ideal", "2 nodes →",
    ):  # fmt: skip
        assert part in said
    # Device counts are ticks written as integers, in both panels.
    assert min(texts.count(tick) for tick in ("16", "2", "1")) >= 2


def test_the_node_boundary_lies_where_a_node_is_added(sweep: list[RunRecord]) -> None:
    lines = [
        line.get_xdata()[0]
        for line in _draw("efficiency", sweep).figure.axes[0].get_lines()
        if len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]
    ]
    assert pytest.approx((2 * 16) ** 0.5) in lines  # between the counts on one node and on two


def test_the_ideal_line_is_one_device_a_speedup_of_one(sweep: list[RunRecord]) -> None:
    ax = _draw("speedup", sweep).figure.axes[0]
    ideal = [line for line in ax.get_lines() if line.get_color() == "#222222"]
    assert len(ideal) == 1
    assert list(ideal[0].get_xdata()) == pytest.approx(list(ideal[0].get_ydata()))


def test_every_launch_is_drawn_faintly(sweep: list[RunRecord]) -> None:
    ax = _draw("efficiency", sweep).figure.axes[0]
    faint = [len(line.get_xdata()) for line in ax.get_lines() if line.get_alpha()]
    assert sum(faint) == sum(one.config.engine == "horovod" for one in sweep)


def test_wait_is_the_area_between_transfer_and_exposed_sync(sweep: list[RunRecord]) -> None:
    plot = _draw("exposed_sync", sweep)
    assert [ax.get_title(loc="left") for ax in plot.figure.axes] == ["batch 75", "batch 700"]
    points = [row for row in plot.rows if row["row"] == "point"]
    assert {row["devices"] for row in points} == {2, 16}  # one device synchronises nothing
    for row in points:
        assert row["transfer_s"] + row["wait_s"] == pytest.approx(row["exposed_sync_s"])


def _bars(ax: Axes) -> list[list[tuple[float, float, bool]]]:
    """Start, length and whether it is hatched of each piece, for each bar from the top."""
    lines: dict[int, list[tuple[float, float, bool]]] = {}
    for piece in ax.patches:
        line = round(piece.get_y() + piece.get_height() / 2)
        lines.setdefault(line, []).append(
            (piece.get_x(), piece.get_width(), piece.get_hatch() is not None)
        )
    return [lines[line] for line in sorted(lines)]


def test_phases_end_to_end_and_the_rest_to_the_windows_step() -> None:
    made = config("horovod", 2, backend="mpi")
    plot = _draw("phases", [record(config("none"), is_base=True), record(made)])
    (ax,) = plot.figure.axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["none  N=1", "mpi  N=2"]
    alone, two = _bars(ax)
    # 0.715 ms of computing, 5, 30, 55 and 8 % of it in phases; 300 µs of sync, 70 % transfer.
    lengths = [0.03575, 0.2145, 0.39325, 0.21, 0.09, 0.0572, 0.0143]
    assert [length for _, length, _ in two] == pytest.approx(lengths)
    assert [start for start, _, _ in two] == pytest.approx([sum(lengths[:i]) for i in range(7)])
    assert [hatched for _, _, hatched in two] == [False] * 6 + [True]
    assert len(alone) == 4 + 1  # one rank synchronises nothing
    steps = [line.get_xdata()[0] for line in ax.get_lines() if line.get_marker() == "|"]
    assert steps == pytest.approx([0.65, 1.015])


def test_phases_that_sum_to_more_than_the_step_are_hatched_beyond_it() -> None:
    made = config("horovod", 2, backend="mpi")
    one = record(made)
    slower = one.phases.model_copy(update={"backward_s": 1e-3, "sum_s": one.phases.sum_s + 1e-3})
    (ax,) = _draw("phases", [record(made, phases=slower)]).figure.axes
    ((*_, last),) = _bars(ax)
    over_ms = one.phases.sum_s * 1e3 - one.phases.backward_s * 1e3 + 1.0 - 1.015
    assert last == (pytest.approx(1.015), pytest.approx(over_ms), True)


def test_a_phase_that_cannot_be_marked_is_in_the_hatched_part_and_named() -> None:
    made = config("ddp", 2, backend="gloo")
    lacking = record(made).phases.model_copy(update={"forward_s": None, "sum_s": None})
    plot = _draw("phases", [record(made, phases=lacking)])
    assert "not all phases could be marked: gloo, batch 75" in " ".join(_texts(plot))
    (row, _) = plot.rows
    assert (row["forward_s"], row["phase_sum_s"]) == (None, None)
    assert row["phase_sum_minus_step_relative"] is None
    ((*_, rest),) = _bars(plot.figure.axes[0])
    assert rest[1] == pytest.approx(0.2145 + 0.0143)


def test_no_phases_no_figure() -> None:
    assert _draw("phases", [record(config("none"), phases=None)]) is None


def test_curves_stand_beside_each_other_so_that_no_interval_hides_another() -> None:
    plain = Look("#000000", "o", "-")
    for count in (2, 3, 12):
        shifts = [look.shift for look in dodged(dict.fromkeys(range(count), plain)).values()]
        assert len(set(shifts)) == count
        assert shifts == sorted(shifts)
        assert shifts[0] * shifts[-1] == pytest.approx(1.0)  # about the tick
        assert max(shifts) < 1.06
    assert dodged({"a": plain}) == {"a": plain}


@pytest.mark.parametrize("name", ["speedup", "efficiency", "exposed_sync", "epoch_time"])
def test_no_two_intervals_are_drawn_at_one_place(name: str) -> None:
    plot = _draw(name, factories.records((2, 4), ("mpi", "gloo"), (75,), blocks=3))
    for ax in plot.figure.axes:
        bars = [
            line.get_xdata()[0]
            for line in ax.get_lines()
            if len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]
            and line.get_linewidth() == 0.8
        ]  # fmt: skip
        assert len(bars) == len(set(bars)) >= 4


def test_a_figure_names_what_makes_it_less_trustworthy(tmp_path: Path) -> None:
    records = [
        factories.with_steadiness(
            one, drifting=one.config.world_size == 2 and one.block.repeat == 0, change=0.03,
            outliers=one.block.repeat,
        ).model_copy(update={"overheads": {"phases": 0.07 if one.config.world_size > 1 else 0.01}})
        for one in factories.records((1, 2), ("mpi",), (75,), blocks=2)
    ]  # fmt: skip
    folder = factories.write_results(tmp_path / "s", [one.sealed() for one in records])
    plot_all(folder, tmp_path / "out", ("svg",))
    costly = "phases cost 7 % (7 to 7 % in 2 launches) at N=2, mpi, batch 75:"
    for name in FIGURES:
        svg = (tmp_path / "out" / f"{name}.svg").read_text()
        said = " ".join(re.findall(r"<text[^>]*>([^<]+)</text>", svg))
        # Only where marked steps are drawn.
        assert (costly in said) == (name in MARKED), name
        assert "the window drifts in 1 of 6 launches; outlier steps in 3 of 6 launches" in said


def test_a_figure_names_a_few_costs_and_counts_the_rest() -> None:
    made = [config("horovod", 2, batch, backend="mpi") for batch in range(10, 16)]
    found = curves(frame([record(one, overheads={"phases": 0.5}) for one in made]))
    assert figure_flags(found, ["telemetry"]) == []
    flags = figure_flags(found, ["phases"])
    assert len(flags) == 4
    assert flags[0].startswith("phases cost 50 % at N=2, mpi, batch 10: ")
    assert flags[-1] == "3 more costs above 5 %, or unsteady: see the table"


def test_a_figure_counts_the_costs_that_cannot_be_told() -> None:
    made = [config("horovod", 2, batch, backend="mpi") for batch in range(10, 16)]
    launches = [
        record(one, r, overheads={"phases": cost})
        for one in made
        for r, cost in enumerate((0.5, -0.5))
    ]
    flags = figure_flags(curves(frame(launches)), ["phases"])
    assert flags == ["6 costs above 5 %, or unsteady: see the table"]


def test_a_csv_has_the_signed_rank_check_from_six_blocks() -> None:
    rows = _draw("speedup", factories.records((2,), ("mpi",), (75,), blocks=6)).rows
    (row,) = [row for row in rows if row["row"] == "point" and row["engine"] == "horovod"]
    assert row["signed_rank_low"] < row["speedup"] < row["signed_rank_high"]
    assert row["signed_rank_level"] == 0.96875
    rows = _draw("speedup", factories.records((2,), ("mpi",), (75,), blocks=5)).rows
    assert all(row["signed_rank_low"] is None for row in rows if row["row"] == "point")


def test_a_sequential_interval_is_called_one_in_every_figure() -> None:
    records = [
        record(
            one, block, sequential=block == 2, is_base=one.engine == "none", factor=1 + block / 9
        )
        for one in (config("none"), config("horovod", 2, backend="mpi"))
        for block in range(3)
    ]
    for name in ("speedup", "efficiency", "exposed_sync", "epoch_time"):
        said = " ".join(_texts(_draw(name, records)))
        assert "3 blocks of one allocation, sequential" in said
        assert "measuring ended when the interval was narrow" in said


def test_one_block_draws_no_interval_and_says_so() -> None:
    plot = _draw("speedup", factories.records((1, 2), ("mpi",), (75,), blocks=1))
    assert "one block: no interval" in _texts(plot)
    assert all(row.get("speedup_low") is None for row in plot.rows)


@pytest.mark.parametrize(
    "name",
    ["speedup", "efficiency", "throughput", "exposed_sync", "exposed_sync_epoch", "epoch_time",
     "epoch_time_devices"],
)  # fmt: skip
def test_a_very_wide_interval_hides_no_data(name: str) -> None:
    """Two blocks that disagree have an interval a hundred times as wide as what was measured."""
    made = [config("none"), *(config("horovod", n, backend="mpi") for n in (1, 2))]
    records = [
        record(one, block, factor=factor, is_base=one.engine == "none")
        for block, factors in enumerate([(1.0, 1.0, 0.9), (0.6, 1.3, 0.5)])
        for one, factor in zip(made, factors, strict=True)
    ]
    plot = _draw(name, records)
    for ax in plot.figure.axes:
        low, high = ax.get_ylim()
        faint = [y for line in ax.get_lines() if line.get_alpha() for y in line.get_ydata()]
        assert low <= min(faint) <= max(faint) <= high
        assert max(faint) > 0.2 * high  # the ideal is inside the limits, too
        arrows = [line for line in ax.get_lines() if line.get_marker() in (CARETUP, CARETDOWN)]
        assert {line.get_ydata()[0] for line in arrows} <= {low, high}
    assert any(line.get_marker() == CARETUP for ax in plot.figure.axes for line in ax.get_lines())


def test_without_a_base_there_is_the_throughput_and_no_efficiency() -> None:
    records = factories.records((1, 2), ("mpi",), (75,), blocks=2, base=None)
    plot = _draw("speedup", records)
    assert [ax.get_ylabel() for ax in plot.figure.axes] == ["samples/s"]
    assert "no speedup: no launch is its base none@1" in " ".join(_texts(plot))
    assert _draw("efficiency", records) is None


def test_bases_alone_have_no_speedup_but_an_epoch_time() -> None:
    records = [record(config("none", 1, k), i) for k in (75, 700, 5000) for i in range(3)]
    assert _draw("speedup", records) is None
    assert _draw("efficiency", records) is None
    assert _draw("exposed_sync", records) is None
    line = next(row for row in _draw("epoch_time", records).rows if row["batch"] == 5000)
    assert line["epoch_s"] == pytest.approx(750_000 / (5000 / (0.5e-3 + 5000 * 2e-6)))


@pytest.mark.parametrize("name", FIGURES)
def test_a_single_point_is_drawn(name: str) -> None:
    plot = _draw(name, factories.records((4,), ("mpi",), (75,), blocks=2))
    assert _svg(plot).startswith("<?xml")
    assert plot.figure.get_figwidth() == WIDTH_IN


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "batches"])
def test_many_curves_are_drawn(name: str) -> None:
    """More curves than colours, markers and dashes; nothing runs out."""
    records = factories.records((1, 2, 3), ("mpi", "gloo"), tuple(range(10, 60, 10)), blocks=1)
    figure = _draw(name, records).figure
    texts = [
        *figure.legends[0].get_texts(),
        *(t for ax in figure.axes for t in ax.get_yticklabels()),
    ]
    said = [*(text.get_text() for text in texts), *(ax.get_title(loc="left") for ax in figure.axes)]
    assert "gloo" in " ".join(said)


def test_equal_records_give_equal_bytes_in_any_order(sweep: list[RunRecord]) -> None:
    one, two = _draw("speedup", sweep), _draw("speedup", sweep[::-1])
    assert _svg(one) == _svg(two)
    assert "<dc:date>" not in _svg(_draw("speedup", sweep))


def test_colours_are_those_of_the_backend_or_tell_curves_apart() -> None:
    plain = curves(frame(factories.records((2,), ("mpi", "gloo"), (75,), blocks=1)))
    assert kind_colours(plain) == {"none": "#000000", "gloo": "#009E73", "mpi": "#D55E00"}
    cycles = [
        record(config("horovod", 2, backend="mpi", horovod={"cycle_time_ms": c})) for c in (1, 5)
    ]
    found = kind_colours(curves(frame(cycles)))
    assert len(set(found.values())) == 2
    assert set(found.values()) <= set(OKABE_ITO)


def test_plot_all_writes_stable_names(tmp_path: Path) -> None:
    assert [name for name in PLOTS if name != "utilisation"] == list(FIGURES)
    records = [*factories.records((1, 2), ("mpi",), (75,), 2), failure(config("none", 1, 700))]
    folder = factories.write_results(tmp_path / "s", records)
    written = plot_all(folder, tmp_path / "out")
    assert [path.name for path in written] == [
        f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg", "csv")
    ]
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(written)
    assert "1 launch failed and is not drawn" in (tmp_path / "out" / "speedup.svg").read_text()
    before = {path: path.read_bytes() for path in written}
    assert {path: path.read_bytes() for path in plot_all(folder, tmp_path / "out")} == before


def test_weak_and_strong_are_figures_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [
        *factories.records((1,), ("mpi",), (75,), blocks=1),
        *factories.records((1,), ("mpi",), (600,), blocks=1, scaling="strong"),
    ]
    folder = factories.write_results(tmp_path / "s", records)
    names = {path.name for path in plot_all(folder, tmp_path / "out", ("svg",))}
    assert {"speedup-weak.svg", "speedup-strong.svg", "epoch_time-weak.csv"} <= names
    assert not any(name.startswith("exposed_sync") for name in names)
    assert "no figure exposed_sync-weak: it needs launches of 2 ranks or more" in caplog.text


def test_nothing_to_draw_says_why(tmp_path: Path) -> None:
    empty = factories.write_results(tmp_path / "empty", [])
    with pytest.raises(AnalysisError, match="holds no measurements; run the sweep first"):
        plot_all(empty, tmp_path / "out")
    failed = factories.write_results(tmp_path / "failed", [failure(config("none"), cause="boom")])
    with pytest.raises(AnalysisError, match="its only launch failed, the last one: boom"):
        plot_all(failed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_formats_and_places_are_one_line(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [record(config("none"))])
    with pytest.raises(AnalysisError, match=r"'pgn' is no format .*did you mean 'png'"):
        plot_all(folder, tmp_path / "out", ("pgn",))
    (tmp_path / "file").write_text("")
    with pytest.raises(AnalysisError, match="cannot be written"):
        plot_all(folder, tmp_path / "file", ("png",))
