"""``draw`` and ``plot_all``: names, titles, formats; results of ``hvdscale allreduce`` redrawn."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pytest

from harness.analysis import plot_all
from harness.analysis.collectives import csv_text
from harness.analysis.plots import PLOTS, TRAINING_PLOTS, draw
from harness.analysis.plots.collectives import plot_record
from harness.analysis.plots.multiples import thinned
from harness.analysis.results import load_results
from harness.cli.listing import command_plot
from harness.collectives.record import CollectivesRecord
from harness.errors import AnalysisError, ConfigError, StoreError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, failure, record
from tests.unit.test_collectives_output import fields, made_times
from tests.unit.test_plots_devices import told
from tests.unit.test_train_analysis import record as trained
from tests.unit.test_train_analysis import training


def whole() -> list[RunRecord]:
    """Return a sweep that has everything there is a figure of."""
    runs = factories.records((1, 2), ("mpi",), (75,), blocks=2)
    watched = [
        one.model_copy(update={"telemetry": told(one.config.world_size, 0.5, gpu=True)}).sealed()
        for one in runs
    ]
    return [*watched, trained(75, 0, training([0.5, 0.1, 0.03], target=0.04))]


def _folder(path: Path, records: Sequence[RunRecord]) -> Path:
    return factories.write_results(path, records)


def test_every_figure_in_every_format_and_twice_the_same_bytes(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "s", whole())
    names = [*PLOTS, *TRAINING_PLOTS]
    written = plot_all(folder, tmp_path / "out", ("png", "svg", "pdf"))
    assert [path.name for path in written] == [
        f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf", "csv")
    ]
    for path in written:
        data = path.read_bytes()
        if path.suffix == ".svg":
            assert ElementTree.fromstring(data).tag.endswith("svg")
        elif path.suffix == ".csv":
            rows = list(csv.DictReader(data.decode().splitlines()))
            assert rows
            assert all(None not in row for row in rows)
        else:
            assert data.startswith({".png": b"\x89PNG", ".pdf": b"%PDF-1."}[path.suffix])
    # The same through the iterator that a report draws from, in any order of the records.
    other = load_results(_folder(tmp_path / "t", whole()[::-1]))
    for drawn in draw(other, ("speedup", "utilisation")):
        for kind in ("pdf", "svg", "png"):  # nor does it matter what was written before
            assert (
                drawn.plot.image(kind) == (tmp_path / "out" / f"{drawn.name}.{kind}").read_bytes()
            )
        assert (
            drawn.plot.csv_text().encode() == (tmp_path / "out" / f"{drawn.name}.csv").read_bytes()
        )


def test_figures_are_drawn_by_name_and_have_titles(tmp_path: Path) -> None:
    results = load_results(_folder(tmp_path / "s", whole()))
    before = dict(mpl.rcParams)
    found = []
    for drawn in draw(results, ("batches", "efficiency")):
        found.append((drawn.name, drawn.title))
        assert dict(mpl.rcParams) == before  # between two figures the caller's style is in force
    assert found == [("efficiency", "Efficiency"), ("batches", "Batches an epoch")]
    with pytest.raises(AnalysisError, match=r"'speedups' is no figure .did you mean 'speedup'"):
        draw(results, ("speedups",))


def test_several_kinds_of_scaling_are_told_apart_in_name_and_title(tmp_path: Path) -> None:
    records = [
        record(config("none")),
        record(config("none", 1, 600, scaling="strong")),
    ]
    results = load_results(_folder(tmp_path / "s", records))
    assert [(one.name, one.title) for one in draw(results, ("batches",))] == [
        ("batches-weak", "Batches an epoch, weak"), ("batches-strong", "Batches an epoch, strong"),
    ]  # fmt: skip


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    assert list(draw(load_results(_folder(tmp_path / "empty", [])))) == []
    failed = load_results(_folder(tmp_path / "failed", [failure(config("none"))]))
    assert list(draw(failed)) == []


def test_what_a_figure_needs_is_said_where_it_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = load_results(_folder(tmp_path / "s", [record(config("none"), phases=None)]))
    drawn = [one.name for one in draw(results)]
    assert drawn == ["throughput", "epoch_time", "epoch_time_devices", "batches"]
    said = caplog.text
    assert "no figure utilisation: it needs the instrument 'telemetry'" in said
    assert "no figure phases: it needs the instrument 'phases'" in said
    assert "no figure allreduce: it needs launches of 2 ranks or more" in said


def test_a_failed_launch_is_counted_and_its_point_not_drawn(tmp_path: Path) -> None:
    lost = config("horovod", 2, backend="mpi")
    records = [record(config("horovod", n, backend="mpi")) for n in (1, 4)]
    results = load_results(_folder(tmp_path / "s", [*records, failure(lost), failure(lost, 1)]))
    (drawn,) = draw(results, ("throughput",))
    assert "2 launches failed and are not drawn" in [t.get_text() for t in drawn.plot.figure.texts]
    assert {row["devices"] for row in drawn.plot.rows} == {1, 4}


@pytest.fixture
def collectives(tmp_path: Path) -> tuple[Path, CollectivesRecord]:
    kept = CollectivesRecord(
        run_id="r", ended_at="2026-01-01T00:01:00.000+00:00", **fields(made_times())
    ).sealed()
    folder = tmp_path / "results" / "allreduce" / "r"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(kept.model_dump_json(indent=1))
    return folder, kept


def test_a_result_of_allreduce_is_redrawn(
    collectives: tuple[Path, CollectivesRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, kept = collectives
    assert command_plot("r", None, "png,pdf", folder.parents[1], None, False) == 0
    said = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert said == [
        "all_reduce.png", "all_reduce.pdf", "all_reduce.csv", "send_recv.png", "send_recv.pdf",
        "send_recv.csv", "barrier.csv",
    ]  # fmt: skip
    assert (folder / "all_reduce.csv").read_text() == csv_text(kept, "all_reduce")
    assert (folder / "all_reduce.png").read_bytes().startswith(b"\x89PNG")
    other = plot_record(folder, folder / "again", ("pdf",))
    assert other[0].read_bytes() == (folder / "all_reduce.pdf").read_bytes()


def test_what_a_result_of_allreduce_cannot_do_is_one_line(
    collectives: tuple[Path, CollectivesRecord],
) -> None:
    folder, _ = collectives
    with pytest.raises(ConfigError, match="--base and --mixed are of a sweep"):
        command_plot(str(folder), None, "png", folder.parents[1], "none@1", False)
    text = (folder / "record.json").read_text()
    (folder / "record.json").write_text(text.replace('"world_size": 4', '"world_size": 8'))
    with pytest.raises(StoreError, match="changed since it was written"):
        command_plot(str(folder / "record.json"), None, "png", folder.parents[1], None, False)


@pytest.mark.parametrize(
    ("most", "kept"), [(0, []), (1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, [*range(10)])]
)
def test_of_many_values_some_are_kept(most: int, kept: list[int]) -> None:
    assert thinned(range(10), most) == kept
