"""Trainings in ``collect``, its table and the plots: from records to time to target."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import plot_all, render_table
from harness.analysis.collecting import collect, load_arrow
from harness.analysis.evaluations import EVALUATION_COLUMNS, load_evaluations
from harness.analysis.plots import training as figure
from harness.analysis.plots.style import style
from harness.analysis.training import TrainedPoint, noise_of, trainings
from harness.config.models import Train
from harness.errors import AnalysisError
from harness.record import Evaluation, NoiseEstimate, RunRecord, Training
from tests import factories
from tests.unit.test_table import check_golden


def training(
    values: Sequence[float],
    *,
    target: float | None = None,
    pace: float = 10.0,
    noise: Sequence[tuple[float, float]] = (),
    lower: bool = True,
) -> Training:
    """Return a training of ``pace`` seconds an epoch, evaluated once each; 1 s an evaluation."""
    last = len(values) - 1
    hits = [k for k, v in enumerate(values) if target is not None and (v <= target) == lower]
    hit = hits[0] if hits else None
    return Training(
        steps=100 * last,
        epochs=float(last),
        samples=7500 * last,
        steps_per_epoch=100,
        metric="mse" if lower else "accuracy",
        lower_is_better=lower,
        target=target,
        reached=None if target is None else hit is not None,
        steps_to_target=None if hit is None else 100 * hit,
        train_s_to_target=None if hit is None else pace * hit,
        wall_s_to_target=None if hit is None else (pace + 1) * hit + 1,
        train_s=pace * last,
        evaluation_s=last + 1.0,
        checkpoint_s=0.0,
        noise_s=0.0,
        wall_s=(pace + 1) * last + 1,
        evaluations=tuple(
            Evaluation(
                step=100 * k,
                epoch=float(k),
                train_s=pace * k,
                wall_s=(pace + 1) * k + 1,
                learning_rate=0.001 if k else None,
                loss=2 * value if k else None,
                metrics={"mse" if lower else "accuracy": value, "other": 7.0},
            )
            for k, value in enumerate(values)
        ),
        noise=tuple(
            NoiseEstimate(
                step=100 * k, batches=8, small_batch=75, large_batch=150, gradient_norm_sq=norm,
                noise_trace=trace, noise_scale=trace / norm if norm > 0 else None,
            )
            for k, (trace, norm) in enumerate(noise)
        ),
        parameter_checksum="c0ffee",
        gradient_allreduce=True,
        bytes_reduced=61_376_400 * last,
    )  # fmt: skip


def record(batch: int, repeat: int, found: Training, n: int = 2, **more: Any) -> RunRecord:
    made = factories.config(
        "horovod", n, batch, backend="mpi", train=Train(epochs=3, target=found.target)
    )
    empty = {"window": None, "phases": None, "allreduce": None, "overheads": {}}
    return factories.record(made, repeat, kind="train", training=found, **empty, **more)


def a_sweep() -> list[RunRecord]:
    """Return three blocks of batch 75, one of which misses the target, and of batch 700."""
    noise = [(1000.0, 10.0), (900.0, 3.0), (800.0, -1.0), (800.0, 1.0)]
    small = [
        record(75, 0, training([0.5, 0.1, 0.03], target=0.04, pace=10, noise=noise[:3])),
        record(75, 1, training([0.5, 0.1, 0.035], target=0.04, pace=12, noise=noise[:3])),
        record(75, 2, training([0.5, 0.2, 0.06, 0.05], target=0.04, pace=11, noise=noise)),
    ]
    large = [
        record(700, k, training([0.5, 0.3, 0.2, 0.1], target=0.04, pace=2 + k / 10))
        for k in range(3)
    ]
    return [*small, *large]


def points(tmp_path: Path, records: Sequence[RunRecord], **more: Any) -> tuple[TrainedPoint, ...]:
    folder = factories.write_results(tmp_path / "s", records)
    return trainings(load_arrow(folder), load_evaluations(folder), **more)


def test_one_row_an_evaluation(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [*a_sweep(), *factories.records((1,))])
    collect(folder)
    table = load_evaluations(folder)
    assert table.column_names == list(EVALUATION_COLUMNS)
    assert table.num_rows == 3 + 3 + 4 + 3 * 4
    rows = [row for row in table.to_pylist() if (row["repeat"], row["rank_batch"]) == (0, 75)]
    first, _, last = sorted(rows, key=lambda row: row["step"])
    assert (first["learning_rate"], first["loss"], first["reached"]) == (None, None, False)
    assert {key: last[key] for key in (
        "step", "epoch", "train_s", "wall_s", "learning_rate", "loss", "metric", "value",
        "target", "reached", "lower_is_better", "gradient_norm_sq", "noise_trace", "noise_scale",
        "global_batch", "world_size", "backend",
    )} == {
        "step": 200, "epoch": 2.0, "train_s": 20.0, "wall_s": 23.0, "learning_rate": 0.001,
        "loss": 0.06, "metric": "mse", "value": 0.03, "target": 0.04, "reached": True,
        "lower_is_better": True, "gradient_norm_sq": -1.0, "noise_trace": 800.0,
        "noise_scale": None, "global_batch": 150, "world_size": 2, "backend": "mpi",
    }  # fmt: skip
    assert json.loads(last["metrics"]) == {"mse": 0.03, "other": 7.0}
    assert "train" in json.loads(last["config"])
    lines = (folder / "evaluations.csv").read_text().splitlines()
    assert lines[0] == ",".join(EVALUATION_COLUMNS)
    assert len(lines) == table.num_rows + 1


def test_evaluations_follow_the_records(tmp_path: Path) -> None:
    one, two, *_ = a_sweep()
    folder = factories.write_results(tmp_path / "s", [one])
    collect(folder)
    assert load_evaluations(folder).num_rows == 3
    factories.write_results(folder, [two])
    collect(folder)
    assert load_evaluations(folder).num_rows == 6
    (folder / "evaluations.csv").unlink()
    collect(folder)  # the table is up to date, its neighbour is not
    assert (folder / "evaluations.csv").exists()
    before = (folder / "evaluations.parquet").stat().st_mtime_ns
    collect(folder)
    assert (folder / "evaluations.parquet").stat().st_mtime_ns == before
    for path in (folder / "runs").glob("*.json"):
        path.unlink()
    collect(folder)
    assert not list(folder.glob("evaluations.*"))


def test_a_sweep_of_windows_has_no_evaluations(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", factories.records((1, 2)))
    table = load_arrow(folder)
    assert not list(folder.glob("evaluations.*"))
    assert trainings(table, load_evaluations(folder)) == ()


def test_time_to_target_is_of_the_launches_that_reached_it(tmp_path: Path) -> None:
    small, large = points(tmp_path, a_sweep())
    assert (small.rank_batch, small.reached, len(small.launches)) == (75, 2, 3)
    assert small.train_s_to_target is not None
    assert small.train_s_to_target.estimate == pytest.approx((20 + 24) / 2)
    assert small.train_s_to_target.n == 2
    assert small.wall_s_to_target is not None
    assert small.wall_s_to_target.estimate == pytest.approx((23 + 27) / 2)
    assert small.epochs_to_target is not None
    assert small.epochs_to_target.estimate == 2.0
    assert small.value.estimate == pytest.approx((0.03 + 0.035 + 0.05) / 3)
    assert (large.reached, large.train_s_to_target) == (0, None)
    assert large.train_s.estimate == pytest.approx(6.3)


def test_without_a_target_nobody_reached_it(tmp_path: Path) -> None:
    (one,) = points(tmp_path, [record(75, 0, training([0.5, 0.1]))])
    assert (one.reached, one.train_s_to_target, one.target) == (None, None, None)
    assert not one.value.has_interval


def test_an_accuracy_is_reached_from_below(tmp_path: Path) -> None:
    found = training([0.1, 0.5, 0.9], target=0.8, lower=False)
    (one,) = points(tmp_path, [record(75, 0, found)])
    assert one.epochs_to_target is not None
    assert one.epochs_to_target.estimate == 2.0


def test_the_noise_scale_is_a_ratio_of_means(tmp_path: Path) -> None:
    small, large = points(tmp_path, a_sweep())
    assert small.first_noise == pytest.approx(100.0)
    assert small.last_noise is None  # means of −1, −1 and 1
    assert large.last_noise is None
    ends = [launch.moments[-1] for launch in small.launches]
    assert noise_of(ends[2:]) == pytest.approx(800.0)
    assert noise_of([small.launches[0].moments[0], small.launches[0].moments[1], None]) == (
        pytest.approx(950 / 6.5)
    )


def test_unlike_machines_are_refused_or_named(tmp_path: Path) -> None:
    other = factories.PROVENANCE | {"cpu_model": "Other CPU"}
    mixed = record(75, 1, training([0.5, 0.1]), provenance=other)
    with pytest.raises(AnalysisError, match=r"the training .* unlike hardware.*cpu_model"):
        points(tmp_path, [record(75, 0, training([0.5, 0.1])), mixed])
    folder = tmp_path / "s"
    found = trainings(load_arrow(folder), load_evaluations(folder), mixed=True)
    assert found[0].unlike is not None
    assert "unlike launches mixed" in render_table(folder, mixed=True)


def test_the_table_of_trainings(tmp_path: Path) -> None:
    made = factories.config("horovod", 2, 75, backend="mpi", train=Train(epochs=3, target=0.04))
    failed = factories.failure(made, 4, cause="rank 0: NaN loss").model_copy(
        update={"kind": "train"}
    )
    folder = factories.write_results(tmp_path / "s", [*a_sweep(), failed.sealed()])
    check_golden("table_training.txt", render_table(folder) + "\n")


def test_tables_of_windows_are_the_same_beside_trainings(tmp_path: Path) -> None:
    windows = factories.records((1, 2), blocks=2)
    plain = render_table(factories.write_results(tmp_path / "a", windows))
    both = render_table(factories.write_results(tmp_path / "b", [*windows, *a_sweep()]))
    assert both.startswith(plain + "\n\ntraining of stress_strain")


def test_figure_and_csv_of_trainings(tmp_path: Path) -> None:
    found = points(tmp_path, a_sweep())
    with style():
        plot = figure.training(found, ["a note"])
    epochs, times = plot.figure.axes
    assert epochs.get_yscale() == "log"  # 0.5 to 0.03
    thin = [line for line in epochs.get_lines() if line.get_alpha()]
    assert len(thin) == 6
    mean = next(line for line in times.get_lines() if line.get_marker() == "o")
    # Means as far as all launches went: to the second epoch.
    assert list(mean.get_xdata()) == pytest.approx([0, 11, 22])
    assert list(mean.get_ydata()) == pytest.approx([0.5, 0.4 / 3, 0.125 / 3])
    targets = [line for line in epochs.get_lines() if set(line.get_ydata()) == {0.04}]
    assert len(targets) == 1
    rows = list(csv.DictReader(plot.csv_text().splitlines()))
    assert len([row for row in rows if row["row"] == "launch"]) == 22
    ends = [r for r in rows if r["row"] == "mean" and r["rank_batch"] == "75"]
    assert [(row["epoch"], row["train_s"]) for row in ends] == [
        ("0", "0"),
        ("1", "11"),
        ("2", "22"),
    ]


def test_a_narrow_metric_has_a_linear_axis(tmp_path: Path) -> None:
    found = points(tmp_path, [record(75, 0, training([0.3, 0.2, 0.1]))])
    assert not figure.log_fits(found)
    assert figure.log_fits(points(tmp_path / "b", a_sweep()))


def test_plot_draws_both_kinds_of_launches(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", a_sweep())
    alone = plot_all(folder, tmp_path / "p", ["svg"])
    assert [path.name for path in alone] == ["training.svg", "training.csv"]
    both = factories.write_results(folder, factories.records((1, 2), blocks=1))
    names = {path.name for path in plot_all(both, tmp_path / "q", ["svg"])}
    assert {"training.svg", "speedup.svg", "epoch_time.csv"} <= names


def test_a_failed_training_is_a_note_on_its_own_figure(tmp_path: Path) -> None:
    made = factories.config("horovod", 2, 75, backend="mpi", train=Train())
    failed = factories.failure(made).model_copy(update={"kind": "train"}).sealed()
    windows = factories.records((1, 2), blocks=1)
    folder = factories.write_results(tmp_path / "s", [*windows, *a_sweep(), failed])
    plot_all(folder, tmp_path / "p", ["svg"])
    said = "1 launch failed and is not drawn"
    assert said in (tmp_path / "p" / "training.svg").read_text()
    assert said not in (tmp_path / "p" / "epoch_time.svg").read_text()
