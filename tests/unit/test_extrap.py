"""The file for Extra-P, read back by the format's description (its docs/file-formats.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.extrap import Export, export
from harness.analysis.results import Results, load_results
from harness.cli import main
from harness.errors import AnalysisError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, record
from tests.unit.test_table import check_golden

Read = dict[tuple[str, str], dict[tuple[float, ...], list[float]]]


def read(text: str) -> tuple[list[str], Read]:
    """Read a file as the description says, and refuse what Extra-P refuses.

    Each line, delimited with ``\\n``, is an object with ``params`` and ``value`` (a number or a
    list), and perhaps ``callpath`` and ``metric``. The first line's parameters are those of all.
    Every call path and metric must have a value at every coordinate.
    """
    parameters: list[str] | None = None
    found: Read = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        data: dict[str, Any] = json.loads(line)
        parameters = parameters or list(data["params"])
        assert set(data["params"]) == set(parameters)
        place = tuple(float(data["params"][name]) for name in parameters)
        value = data["value"] if isinstance(data["value"], list) else [data["value"]]
        key = (data.get("callpath", "<root>"), data.get("metric", "<default>"))
        found.setdefault(key, {}).setdefault(place, []).extend(map(float, value))
    assert parameters
    places = {place for values in found.values() for place in values}
    assert all(set(values) == places for values in found.values())
    return parameters, found


def exported(folder: Path, kept: list[RunRecord]) -> tuple[Results, Export]:
    loaded = load_results(factories.write_results(folder, kept))
    return loaded, export(loaded)


def paths(found: Read) -> set[str]:
    return {path for path, _ in found}


ALL = {
    "step", "step->data", "step->forward", "step->backward", "step->exposed_sync",
    "step->exposed_sync->transfer", "step->exposed_sync->wait", "step->update",
    "isolated_allreduce",
}  # fmt: skip


def test_every_launch_is_a_value_of_its_point(tmp_path: Path) -> None:
    kept = factories.records((1, 2, 4, 8, 16, 32), ("mpi",), (75,), blocks=3)
    loaded, made = exported(tmp_path / "s", kept)
    parameters, found = read(made.text())
    assert parameters == ["p"]
    assert paths(found) == ALL
    assert {metric for _, metric in found} == {"time"}
    (curve,) = [curve for curve in loaded.curves if curve.engine == "horovod"]
    for point in curve.points[1:]:
        place = (float(point.world_size),)
        steps = [launch.step_s for launch in point.launches]
        assert found["step", "time"][place] == steps
        assert len(steps) == 3
        synced = [launch.exposed_sync_s for launch in point.launches]
        assert found["step->exposed_sync", "time"][place] == synced
    # N = 1 has no synchronisation, which is not one of zero; the plain step has one device count.
    assert (1.0,) not in found["step", "time"]
    assert made.left_out == (
        "none, batch 75: it has one device count",
        "p = 1: one rank alone has no synchronisation",
    )
    assert made.advice == ()


def test_the_batch_is_a_parameter_where_there_are_several(tmp_path: Path) -> None:
    kept = factories.records((2, 4), ("mpi", "gloo"), (75, 700), blocks=2, base=None)
    _, made = exported(tmp_path / "s", kept)
    parameters, found = read(made.text())
    assert parameters == ["p", "batch"]
    assert paths(found) == {f"backend={b}->{path}" for b in ("mpi", "gloo") for path in ALL}
    steps = found["backend=mpi->step", "time"]
    assert set(steps) == {(2.0, 75.0), (2.0, 700.0), (4.0, 75.0), (4.0, 700.0)}
    assert made.advice == tuple(
        f"Extra-P asks for 5 values of each parameter or more: {name} has 2"
        for name in ("p", "batch")
    )


def test_other_batches_of_each_series_are_no_parameter(tmp_path: Path) -> None:
    kept = factories.records((2, 4), ("mpi",), (75,), blocks=1, base=None)
    kept += factories.records((2, 4), ("gloo",), (700,), blocks=1, base=None)
    parameters, found = read(exported(tmp_path / "s", kept)[1].text())
    assert parameters == ["p"]
    roots = {path.split("->")[0] for path in paths(found)}
    assert roots == {"backend=mpi batch=75", "backend=gloo batch=700"}


def test_only_a_batch_is_a_parameter_alone(tmp_path: Path) -> None:
    kept = [record(config("none", 1, batch), i) for batch in (75, 150, 300) for i in range(2)]
    parameters, found = read(exported(tmp_path / "s", kept)[1].text())
    assert parameters == ["batch"]
    assert paths(found) == {"step", "step->data", "step->forward", "step->backward", "step->update"}


def test_what_is_not_measured_everywhere_is_left_out_and_named(tmp_path: Path) -> None:
    """Extra-P refuses a file with a hole, so the call path goes, not the point."""
    kept = [
        record(config("horovod", n, backend="mpi"), **({"phases": None} if n == 8 else {}))
        for n in (2, 4, 8)
    ]
    _, made = exported(tmp_path / "s", kept)
    _, found = read(made.text())
    assert paths(found) == {"step", "isolated_allreduce"}
    (said,) = made.left_out
    assert "step->forward" in said
    assert said.endswith("not measured at p = 8, batch 75")


def test_one_rank_alone_stays_where_little_else_is_there(tmp_path: Path) -> None:
    kept = factories.records((1, 2), ("mpi",), (75,), blocks=2, base=None)
    _, made = exported(tmp_path / "s", kept)
    _, found = read(made.text())
    assert set(found["step", "time"]) == {(1.0,), (2.0,)}
    assert not any("sync" in path for path in paths(found))
    assert any("step->exposed_sync" in said for said in made.left_out)


def test_device_counts_that_not_all_have_are_left_out(tmp_path: Path) -> None:
    kept = factories.records((2, 4, 8), ("mpi",), (75,), blocks=1, base=None)
    kept += factories.records((2, 4), ("gloo",), (75,), blocks=1, base=None)
    _, made = exported(tmp_path / "s", kept)
    assert set(read(made.text())[1]["backend=mpi->step", "time"]) == {(2.0,), (4.0,)}
    assert made.left_out == ("p = 8: not measured in all series",)


def test_of_two_placements_that_of_fewer_nodes_counts(tmp_path: Path) -> None:
    """The same number of devices on more nodes is another machine, not another repetition."""
    kept = [record(config("horovod", p, backend="mpi")) for p in (2, "1x4", "2x2")]
    loaded, made = exported(tmp_path / "s", kept)
    _, found = read(made.text())
    (point,) = [p for curve in loaded.curves for p in curve.points if p.placement == "4"]
    assert found["step", "time"][4.0,] == [point.launches[0].step_s]
    assert any("placement 2+2" in said for said in made.left_out)


def test_a_failed_launch_is_no_value(tmp_path: Path) -> None:
    kept = factories.records((2, 4), ("mpi",), (75,), blocks=2, base=None)
    kept.append(factories.failure(config("horovod", 4, backend="mpi"), 2))
    _, found = read(exported(tmp_path / "s", kept)[1].text())
    assert len(found["step", "time"][4.0,]) == 2


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([], "holds no measurements"),
        ([factories.failure(config("horovod", 2))], "failed"),
        ([record(config("horovod", 2, backend="mpi"))], "one device count and one batch"),
        ([record(config("horovod", n, backend=b)) for n, b in
          ((2, "mpi"), (4, "mpi"), (8, "gloo"), (16, "gloo"))], "in all series"),
    ],
)  # fmt: skip
def test_what_cannot_be_modelled_is_said(tmp_path: Path, kept: list[RunRecord], said: str) -> None:
    with pytest.raises(AnalysisError, match=said):
        exported(tmp_path / "s", kept)


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = factories.records((1, 2, 4), ("mpi",), (75,), blocks=1, noise=0.0)
    folder = factories.write_results(tmp_path / "s", kept)
    assert main(["export", str(folder), "--extrap"]) == 0
    printed = capsys.readouterr()
    check_golden("extrap.jsonl", printed.out)
    assert "left out: p = 1: one rank alone has no synchronisation" in printed.err
    out = tmp_path / "file.jsonl"
    assert main(["export", str(folder), "--extrap", "--out", str(out)]) == 0
    assert out.read_text() == printed.out
    assert capsys.readouterr().out == f"{out}\n"


def test_the_command_asks_for_which_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "--extrap" in capsys.readouterr().err
