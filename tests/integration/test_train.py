"""Trainings on real ranks, through the command line: to a target, past it, into NaN."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.record import RunRecord
from harness.store import Store
from tests.requirements import require_modules, require_mpi

ROOT = Path(__file__).parents[2]

#: On one rank (plain) and on two, of the same global batch: the same training. 30 steps an epoch.
SWEEP = """\
name: trained
workload: {name: stress_strain, samples: 2000}
engine: horovod
backend: mpi
placement: 1x2
scaling: strong
global_batch_size: 50
cores_per_rank: 1
learning_rate: {rule: linear, base_batch: 25, warmup_epochs: 0.5}
measure: {blocks: 1, timeout_s: 200, window_s: 0.2}
train: {epochs: 2, target: 0.1, evaluate_every: 0.5, checkpoint: true}
base: null
include: [{engine: none, placement: 1x1}]
"""


class Results:
    """A folder with the sweep's file, in which commands are run."""

    def __init__(self, folder: Path, data_dir: Path) -> None:
        self.folder = folder
        self.env = os.environ | {"PYTHONPATH": str(ROOT), "HVDSCALE_DATA_DIR": str(data_dir)}
        (folder / "trained.yaml").write_text(SWEEP)

    def hvdscale(self, *argv: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *argv],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    @property
    def store(self) -> Store:
        return Store.open(self.folder / "results" / "trained")

    def by_engine(self) -> dict[str, RunRecord]:
        return {one.config.engine: one for one in self.store.records() if one.status == "ok"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Results:
    require_modules("torch", "horovod")
    require_mpi()
    made = Results(tmp_path_factory.mktemp("trained"), data_dir)
    code, out, err = made.hvdscale("train", "trained.yaml", "--slots", "2")
    assert code == 0, err
    assert "2 measured, 0 done before" in out
    assert err.count("target 0.1 reached") == 2
    return made


def test_a_training_ends_at_its_target(results: Results) -> None:
    for record in results.by_engine().values():
        found = record.training
        assert (record.kind, record.window, record.block.is_base) == ("train", None, False)
        assert found is not None
        values = [one.metrics["mse"] for one in found.evaluations]
        assert values[-1] <= 0.1 < min(values[:-1])
        assert (found.reached, found.steps_to_target) == (True, found.steps)
        assert [one.step for one in found.evaluations] == list(range(0, found.steps + 1, 15))
        assert found.steps < 60  # of two epochs
        parts_s = found.train_s + found.evaluation_s + found.checkpoint_s + found.noise_s
        assert found.train_s_to_target == found.train_s < parts_s <= found.wall_s * 1.5
        assert [n.step for n in found.noise] == [e.step for e in found.evaluations]


def test_the_rate_warms_up_from_the_base_to_the_rules(results: Results) -> None:
    for record in results.by_engine().values():
        assert record.training is not None
        assert record.workload is not None
        base = 4.7331e-4
        assert record.workload.learning_rate == pytest.approx(2 * base)
        first = record.training.evaluations[1]  # after the warm-up's 15 steps
        assert first.learning_rate == pytest.approx(base * (1 + 14 / 15))


def test_two_ranks_train_as_one_does(results: Results) -> None:
    one, two = (results.by_engine()[name].training for name in ("none", "horovod"))
    assert one is not None
    assert two is not None
    assert (one.gradient_allreduce, one.bytes_reduced) == (False, 0)
    assert (two.gradient_allreduce, two.bytes_reduced) == (True, two.steps * 613_764)
    assert one.samples == two.samples
    for mine, other in zip(one.evaluations, two.evaluations, strict=True):
        assert mine.metrics["mse"] == pytest.approx(other.metrics["mse"], rel=1e-3)
        assert (mine.loss or 0.0) == pytest.approx(other.loss or 0.0, rel=1e-3)
    # The same weights and samples: gradients of 25 and 50 there, of 50 and 100 here.
    first, second = one.noise[0], two.noise[0]
    assert (first.small_batch, first.large_batch) == (50, 100)
    assert (second.small_batch, second.large_batch) == (25, 50)
    assert first.gradient_norm_sq == pytest.approx(second.gradient_norm_sq, rel=0.2)
    assert first.noise_trace == pytest.approx(second.noise_trace, rel=0.6)


def test_a_checkpoint_is_the_model_at_the_end(results: Results) -> None:
    for record in results.by_engine().values():
        assert record.training is not None
        assert record.training.checkpoint == f"checkpoint-{record.training.steps}.npz"
        folder = results.store.logs / record.run_id / "1"
        assert [path.name for path in folder.glob("*.npz")] == [record.training.checkpoint]
        with np.load(folder / record.training.checkpoint, allow_pickle=False) as kept:
            assert sum(kept[name].size for name in kept) == 153_441


def test_listed_collected_and_plotted(results: Results) -> None:
    _, listed, _ = results.hvdscale("ls", "trained")
    states = [line.partition(" batch 50 ")[2].split() for line in listed.splitlines()[1:]]
    assert states == [["training", "1/1", "done"]] * 2
    code, table, err = results.hvdscale("collect", "trained")
    assert code == 0, err
    assert "target mse ≤ 0.1" in table
    assert table.count("1 of 1") == 2
    code, plots, err = results.hvdscale("plot", "trained")
    assert code == 0, err
    assert [Path(line).name for line in plots.splitlines()] == [
        "training.png", "training.svg", "training.csv",
    ]  # fmt: skip


def test_a_second_run_starts_nothing_and_another_target_is_another_training(
    results: Results,
) -> None:
    code, out, _ = results.hvdscale("train", "trained.yaml", "--slots", "2")
    assert (code, "0 measured, 2 done before" in out) == (0, True)
    more = ["--set", "train.target=0.0001", "--set", "train.epochs=0.5", "--set", "placement=1x1"]
    only = ["--set", "engine=none", "--set", "backend=null", "--set", "include=[]"]
    code, out, err = results.hvdscale("train", "trained.yaml", *more, *only)
    assert code == 0, err
    assert "1 measured, 0 done before" in out
    assert "after 0.5 epochs" in err
    assert "target 0.0001 not reached" in err


def test_nan_loss_is_recorded_and_the_sweep_goes_on(results: Results) -> None:
    """Two ranks with a rate at which weights run over at once, and one rank with a plain one."""
    code, out, err = results.hvdscale(
        "train", "trained.yaml", "--slots", "2",
        "--set", "name=wild", "--set", "learning_rate.base=1.0e+30", "--set", "train.epochs=0.1",
        "--set", "include=[{engine: none, placement: 1x1, learning_rate: {base: 1.0e-4}}]",
    )  # fmt: skip
    assert code == 1, err
    assert "1 measured, 0 done before, 1 failed" in out
    store = Store.open(results.folder / "results" / "wild")
    (failed,) = [one for one in store.records() if one.status != "ok"]
    assert (failed.kind, failed.status) == ("train", "failed")
    assert failed.error is not None
    assert "NaN loss: the loss of rank 0 is" in failed.error.cause
    assert "among steps 0 to 2 since the evaluation before" in failed.error.cause
