"""``hvdscale train``: which launches, under which ids, beside the windows of the same sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.config import parse_sweep, run_id
from harness.config.identity import canonical
from harness.config.models import Train
from harness.errors import ConfigError
from harness.record import Training
from harness.runner import point, run_sweep, schedule
from harness.runner.labels import label
from harness.runner.listing import list_sweep
from harness.runner.progress import trained
from harness.store import Store
from harness.validate import plan
from tests import factories
from tests.unit.stub_sweep import MACHINE, fake_build
from tests.unit.test_train_analysis import training


def sweep(**changes: Any) -> Any:
    data: dict[str, Any] = {
        "name": "stub",
        "workload": {"name": "stress_strain", "samples": 400},
        "engine": "horovod",
        "backend": "gloo",
        "placement": ["1x1", "1x2"],
        "batch_size": 20,
        "cores_per_rank": 1,
        "measure": {"blocks": 2, "timeout_s": 30, "window_s": 0.5},
        "train": {"epochs": 3, "target": 0.02},
    }
    return parse_sweep(data | changes)


def test_every_point_is_trained_and_no_base() -> None:
    made = plan(sweep(base="none@1"), MACHINE, training=True)
    assert [(c.engine, c.world_size) for c in made.launches] == [("horovod", 1), ("horovod", 2)]
    assert made.bases == (None, None)
    assert {c.train for c in made.launches} == {Train(epochs=3, target=0.02)}
    windows = plan(sweep(base="none@1"), MACHINE)
    assert {c.train for c in windows.launches} == {None}
    assert not set(made.resolved) & set(windows.resolved)


def test_timelines_are_for_windows_alone() -> None:
    asked = sweep(measure={"blocks": 1, "instruments": ["phases", "timeline"]})
    assert len(plan(asked, MACHINE).timelines) == 1
    assert plan(asked, MACHINE, training=True).timelines == ()


def test_what_has_no_part_in_training_is_not_in_its_id() -> None:
    one = plan(sweep(), MACHINE, training=True)
    other = plan(
        sweep(measure={"blocks": 7, "window_s": 2, "warmup_steps": 3, "instruments": []}),
        MACHINE,
        training=True,
    )
    assert one.launches == other.launches
    longer = plan(sweep(train={"epochs": 4, "target": 0.02}), MACHINE, training=True)
    assert not set(one.resolved) & set(longer.resolved)
    # Ids are pinned: those of results folders must stay what they are.
    assert canonical(one.launches[1]) == {
        "batch_size": 20, "cores_per_rank": 1, "placement": "1x2", "backend": "gloo",
        "train": {"epochs": 3.0, "target": 0.02},
        "workload": {"name": "stress_strain", "options": {"samples": 400}},
    }  # fmt: skip
    assert run_id(one.launches[1], 0) == "ad16bdc2949b37ba"


def test_axes_of_measuring_fall_into_one_training() -> None:
    asked = sweep(placement="1x2", measure={"window_s": [0.5, 1.0], "blocks": 1})
    assert len(plan(asked, MACHINE).points) == 2
    assert len(plan(asked, MACHINE, training=True).points) == 1


def test_a_target_of_intervals_adds_no_trainings(tmp_path: Path) -> None:
    asked = sweep(measure={"blocks": 2, "ci_target": 0.01, "max_blocks": 9})
    work = schedule.planned(asked, MACHINE, tmp_path, training=True)
    assert (work.blocks, work.max_blocks) == (2, 2)
    launches = list(schedule.block_launches(work, 0))
    assert not any(launch.block.sequential or launch.block.is_base for launch in launches)
    assert schedule.planned(asked, MACHINE, tmp_path).max_blocks == 9


def test_a_warm_up_without_a_rule_is_refused() -> None:
    asked = sweep(learning_rate={"warmup_epochs": 1})
    with pytest.raises(ConfigError, match=r"learning_rate\.warmup_epochs: .*set rule to sqrt"):
        plan(asked, MACHINE, training=True)
    assert plan(asked, MACHINE).launches  # a window has the rule's rate, and no warm-up
    assert plan(sweep(learning_rate={"warmup_epochs": 1, "rule": "sqrt"}), MACHINE, training=True)


class Quiet:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, name: str, total: int, done: int) -> None:
        self.lines.append(f"{total} launches, {done} done")

    def launching(self, label: str) -> None:
        self.lines.append(label)

    def finished(self, label: str, record: Any, wall_s: float) -> None:
        self.lines.append(record.status)

    def note(self, text: str) -> None:
        self.lines.append(text)


def run(asked: Any, results: Path, *, training: bool) -> Any:
    return run_sweep(asked, MACHINE, results, report=Quiet(), data_dir=results, training=training)


def test_blocks_resume_and_failures_are_as_of_a_sweep_of_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sweep(engine="none", placement="1x1", base=None)
    behaviour = {"now": "raise"}
    monkeypatch.setattr(point, "build", fake_build(lambda config: behaviour["now"]))
    failed = run(one, tmp_path, training=True)
    assert (failed.ok, failed.failed, failed.exit_code) == (0, 2, 1)
    store = Store.open(tmp_path / "stub")
    assert {store.read_failure(*key).kind for key in store.attempts()} == {"train"}
    behaviour["now"] = "ok"
    assert run(one, tmp_path, training=True).ok == 2
    again = run(one, tmp_path, training=True)
    assert (again.ok, again.skipped) == (0, 2)
    assert run(one, tmp_path, training=False).ok == 2  # windows are launches of their own
    listed = list_sweep(tmp_path / "stub")
    assert [(p.label, p.done, p.asked, p.failed_attempts) for p in listed.points] == [
        ("stress_strain none 1x1 batch 20", 2, 2, 0),
        ("stress_strain none 1x1 batch 20 training", 2, 2, 2),
    ]
    assert run(one, tmp_path, training=True).skipped == 2
    assert len(list_sweep(tmp_path / "stub").points) == 2  # what run asked for is still there


def test_a_plan_of_an_earlier_version_is_of_windows(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    Store.open(folder, create=True)
    old = {"point_id": "p", "label": "x", "base": False, "runs": ["r"]}
    (folder / "points.json").write_text(json.dumps({"schema_version": 2, "points": [old]}))
    (found,) = list_sweep(folder).points
    assert (found.label, found.asked) == ("x", 1)


def test_a_training_is_named_and_told_in_a_line() -> None:
    made = factories.config("horovod", 2, 50, backend="mpi", train=Train())
    assert label(made) == "stress_strain horovod/mpi 2 batch 50 training"
    found: Training = training([0.5, 0.03], target=0.04)
    assert trained(found) == "mse 0.03 after 1 epochs, 10 s of training; target 0.04 reached"
    assert trained(training([0.5], target=0.04)).endswith("target 0.04 not reached")
    assert trained(training([0.5])).endswith("of training")


def test_a_dry_run_prints_what_would_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        "name: s\nworkload: {name: stress_strain, samples: 400}\nengine: none\nbatch_size: 20\n"
        "measure: {blocks: 1}\n"
    )
    assert cli.main(["train", "s.yaml", "--dry-run", "--set", "train.epochs=2"]) == 0
    comment, command = capsys.readouterr().out.splitlines()
    assert comment == "# block 1: stress_strain none 1x1 batch 20 training"
    assert "harness bench --run" in command
    assert not (tmp_path / "results").exists()
    assert cli.main(["train", "s.yaml", "--dry-run", "--set", "train.epoch=2"]) == 2
    assert "epochs" in capsys.readouterr().err
