"""One rank that trains: its order of steps, evaluations, stops, times, checkpoints and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness import training as rank_side
from harness.config.models import Train
from harness.engines.api import Reduced, World
from harness.errors import LaunchError
from harness.learning_rate import Schedule
from harness.measure.training import (
    Goal,
    Stretch,
    evaluation_steps,
    mean_loss,
    total_steps,
)
from harness.record import Training
from harness.training import Trainee, run_training, write_weights
from tests.factories import config
from tests.unit.fake_clock import Clock
from tests.unit.fake_engine import FakeEngine, FakeStep
from workloads import registry

FLAT = Schedule(0.1, 0.1, 0.0)


class Feed:
    """Four steps an epoch."""

    steps_per_epoch = 4

    def __init__(self) -> None:
        self.position = 0

    def next(self) -> tuple[int]:
        self.position += 1
        return (self.position - 1,)

    def seek(self, position: int) -> None:
        self.position = position

    def close(self) -> None:
        pass


class Step(FakeStep):
    """Step k has loss 1 / (k + 1), takes 1 s, an evaluation 10 s, a checkpoint 100 s."""

    def __init__(self, clock: Clock, metrics: Callable[[int], dict[str, float]]) -> None:
        super().__init__(before=lambda: self._pass(1.0))
        self._clock = clock
        self._metrics = metrics
        self.bad: dict[int, float] = {}
        self.extra_bytes = 0

    def _pass(self, seconds: float) -> None:
        self._clock.now_s += seconds

    def run(self, batch: tuple[Any, ...], *, sync: bool = True) -> Any:
        loss = super().run(batch, sync=sync)
        return self.bad.get(len(self.batches) - 1, loss)

    def evaluate(self, samples: Any) -> dict[str, float]:
        assert samples == "test split"
        self.calls.append("evaluate")
        self._pass(10.0)
        return self._metrics(len(self.batches))

    def gradient(self, batch: tuple[Any, ...]) -> Any:
        self._pass(0.125)
        return np.ones(1, dtype=np.float32)

    def weights(self) -> dict[str, Any]:
        self._pass(100.0)
        return {"file": np.arange(3.0) + len(self.batches), "layer.1/bias:0": np.float32([1])}

    def reduced(self) -> Reduced:
        found = super().reduced()
        return Reduced(found.steps, found.bytes + self.extra_bytes * bool(self.batches))


class Alone(Step):
    """No all-reduce, as on one rank."""

    gradient_allreduce = False


def trained(
    monkeypatch: pytest.MonkeyPatch,
    train: dict[str, Any],
    *,
    metrics: Callable[[int], dict[str, float]] = lambda done: {"mse": 1.0 / (done + 1)},
    goal: Goal | None = None,
    schedule: Schedule = FLAT,
    folder: Path | None = None,
    bad: dict[int, float] | None = None,
) -> tuple[Training, Step, Feed]:
    clock = Clock()
    monkeypatch.setattr(rank_side, "time", clock)
    step, feed = Alone(clock, metrics), Feed()
    step.bad = bad or {}
    made = Train(**({"noise_scale": False} | train))
    job = Trainee(
        train=made,
        goal=goal or Goal("mse", True, made.target),
        engine=FakeEngine(),
        world=World(0, 1, 0, 1),
        step=step,
        feed=feed,
        schedule=schedule,
        rank_batch=25,
        test=lambda: "test split",
        folder=folder,
    )
    return run_training(job), step, feed


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        ({"epochs": 2}, [0, 10, 20]),
        ({"epochs": 2, "evaluate_every": 0.5}, [0, 5, 10, 15, 20]),
        ({"epochs": 0.25, "evaluate_every": 0.1}, [0, 1, 2, 3]),  # 2.5 steps: rounded up
        ({"epochs": 1.5, "evaluate_every": 1}, [0, 10, 15]),
        ({"epochs": 0.3, "evaluate_every": 0.001}, [0, 1, 2, 3]),  # each step once; 0.3·10 is 3
        ({"epochs": 1, "evaluate_every": 5}, [0, 10]),
        ({"epochs": 0.001}, [0, 1]),
    ],
)
def test_evaluations_are_at_the_start_every_so_often_and_at_the_end(
    train: dict[str, Any], steps: list[int]
) -> None:
    made = Train(**train)
    assert list(evaluation_steps(made, 10)) == steps
    assert total_steps(made, 10) == steps[-1]


def test_epochs_rates_and_evaluations_come_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rising = Schedule(0.1, 0.3, warmup_steps=2)
    found, step, feed = trained(monkeypatch, {"epochs": 1.5, "evaluate_every": 1}, schedule=rising)
    assert [call for call in step.calls if call != "synchronise"] == [
        "evaluate", "epoch", "rate 0.1", "run", "rate 0.2", "run", "rate 0.3", "run", "run",
        "evaluate", "epoch", "run", "run", "evaluate",
    ]  # fmt: skip
    assert [batch for (batch,) in step.batches] == list(range(6))
    assert [e.learning_rate for e in found.evaluations] == [None, 0.3, 0.3]
    assert (found.steps, found.epochs, found.samples) == (6, 1.5, 150)
    assert (found.reached, found.steps_to_target, feed.position) == (None, None, 6)


def test_times_of_training_evaluation_and_checkpoint_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, _, _ = trained(
        monkeypatch, {"epochs": 2, "checkpoint": True, "noise_scale": True}, folder=tmp_path
    )
    noise_s = 3 * 8 * 2 * 0.125  # estimates, pairs, gradients
    times = (found.train_s, found.evaluation_s, found.checkpoint_s, found.noise_s, found.wall_s)
    assert times == (8.0, 30.0, 200.0, noise_s, 238.0 + noise_s)
    assert [e.train_s for e in found.evaluations] == [0.0, 4.0, 8.0]
    # What follows an evaluation is in the wall-clock of the next one alone; estimates in none.
    without_s = [10.0, 24.0, 138.0]
    assert [e.wall_s for e in found.evaluations] == without_s
    assert [n.step for n in found.noise] == [0, 4, 8]


def test_losses_are_means_since_the_evaluation_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_side, "KEPT_LOSSES", 2)  # brought over in parts, none forgotten
    found, _, _ = trained(monkeypatch, {"epochs": 1.5, "evaluate_every": 0.75})
    first, second = (1 + 1 / 2 + 1 / 3) / 3, (1 / 4 + 1 / 5 + 1 / 6) / 3
    assert [e.loss for e in found.evaluations] == [
        None,
        pytest.approx(first),
        pytest.approx(second),
    ]


def test_a_target_ends_the_training_at_its_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    found, step, _ = trained(
        monkeypatch, {"epochs": 9, "target": 0.2, "evaluate_every": 0.5}
    )  # 1 / (done + 1) is 0.2 after four steps
    assert (found.reached, found.steps, found.steps_to_target) == (True, 4, 4)
    assert (found.train_s_to_target, found.wall_s_to_target) == (4.0, 34.0)
    assert len(step.batches) == 4


def test_a_target_that_is_not_reached_ends_with_the_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _, _ = trained(monkeypatch, {"epochs": 2, "target": 0.001})
    assert (found.reached, found.steps) == (False, 8)
    assert (found.steps_to_target, found.train_s_to_target) == (None, None)


def test_of_an_accuracy_more_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, _ = trained(
        monkeypatch,
        {"epochs": 5},
        metrics=lambda done: {"accuracy": done / 20, "loss": 5.0},
        goal=Goal("accuracy", False, 0.6),
    )
    assert (found.reached, found.steps_to_target) == (True, 12)
    assert found.evaluations[-1].metrics == {"accuracy": 0.6, "loss": 5.0}


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_it_by_rank_and_step(
    monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    with pytest.raises(
        LaunchError, match=rf"NaN loss: the loss of rank 0 is {loss} at step 5, among steps 4 to 7"
    ):
        trained(monkeypatch, {"epochs": 3}, bad={5: loss, 6: loss})


def test_the_rank_of_a_bad_loss_is_named_on_every_rank() -> None:
    good = Stretch(4, 8, 1.0, 2.0, None, None)
    with pytest.raises(LaunchError, match="rank 1 is nan at step 6"):
        rank_side.check_losses([good, Stretch(4, 8, 1.0, math.nan, 6, math.nan)])
    assert mean_loss([good, Stretch(4, 8, 1.0, 6.0, None, None)]) == 1.0


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"mse": math.nan}, "mse is nan at the evaluation after step 0"),
        ({"mse": 1.0, "perplexity": math.inf}, "perplexity is inf"),
        ({"accuracy": 1.0}, "gives accuracy, and not the workload's target metric mse"),
    ],
)
def test_an_evaluation_that_says_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, metrics: dict[str, float], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        trained(monkeypatch, {}, metrics=lambda done: metrics)


def test_the_last_checkpoint_stays_and_is_read_without_pickle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, _, _ = trained(monkeypatch, {"epochs": 2, "checkpoint": True}, folder=tmp_path)
    assert found.checkpoint == "checkpoint-8.npz"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-8.npz"]
    with np.load(tmp_path / found.checkpoint, allow_pickle=False) as kept:
        assert sorted(kept) == ["file", "layer.1/bias:0"]
        assert kept["file"].tolist() == [8.0, 9.0, 10.0]
        assert kept["layer.1/bias:0"].dtype == np.float32


def test_a_checkpoint_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"no/w\.npz: the checkpoint cannot be written: No such"):
        write_weights(tmp_path / "no" / "w.npz", {"w": np.zeros(2)})


def test_a_checkpoint_needs_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match=r"train\.checkpoint: this launch has no folder"):
        trained(monkeypatch, {"checkpoint": True})


class TwoRanks(FakeEngine):
    """The other rank says what ``answers`` makes of what this one says."""

    def __init__(self, answers: Callable[[Any], Any]) -> None:
        super().__init__()
        self._answers = answers

    def gather(self, value: Any) -> list[Any]:
        return [value, self._answers(value)]


def two_ranks(
    monkeypatch: pytest.MonkeyPatch, answers: Callable[[Any], Any], extra_bytes: int = 0
) -> Training:
    clock = Clock()
    monkeypatch.setattr(rank_side, "time", clock)
    step = Step(clock, lambda done: {"mse": 1.0})
    step.extra_bytes = extra_bytes
    return run_training(
        Trainee(
            train=Train(noise_scale=False),
            goal=Goal("mse", True, None),
            engine=TwoRanks(answers),
            world=World(0, 2, 0, 2),
            step=step,
            feed=Feed(),
            schedule=FLAT,
            rank_batch=25,
            test=lambda: "test split",
            folder=None,
        )
    )


def slower(value: Any) -> Any:
    """Take twice as long in training steps as rank 0; evaluate nothing."""
    if isinstance(value, Stretch):
        return Stretch(value.first, value.stop, 2 * value.train_s, 0.0, None, None)
    if isinstance(value, tuple) and len(value) == 3:
        return (None, 0.0, value[2] + 1)
    return value


def test_times_are_the_longest_ranks_and_metrics_rank_0s(monkeypatch: pytest.MonkeyPatch) -> None:
    found = two_ranks(monkeypatch, slower)
    assert (found.train_s, found.evaluation_s) == (8.0, 20.0)
    assert found.evaluations[-1].wall_s == 25.0
    assert found.evaluations[-1].metrics == {"mse": 1.0}
    assert (found.samples, found.bytes_reduced, found.gradient_allreduce) == (200, 1600, True)


def test_unequal_weights_and_other_bytes_are_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def drifted(value: Any) -> Any:
        value = slower(value)
        ends = isinstance(value, tuple) and len(value) == 4
        return (*value[:3], "other") if ends else value

    with pytest.raises(LaunchError, match=r"parameters of rank\(s\) \[1\] differ"):
        two_ranks(monkeypatch, drifted)
    with pytest.raises(LaunchError, match=r"rank 0 reduced 1608 bytes in the training.*= 1600"):
        two_ranks(monkeypatch, slower, extra_bytes=8)


@pytest.mark.parametrize(("name", "estimated"), [("stress_strain", True), ("lstm", False)])
def test_noise_is_estimated_where_batches_are_independent(
    name: str, estimated: bool, tmp_path: Path
) -> None:
    """Successive batches of a stream are neighbours, and carried state belongs to one place."""
    made = config(workload=name)
    feed = SimpleNamespace(steps_per_epoch=10)
    parts: list[Any] = [FakeEngine(), World(0, 1, 0, 1), FakeStep(), feed, None]
    job = rank_side.trainee(made, Train(), registry.create(name, {}, tmp_path), *parts)
    assert job.train.noise_scale is estimated
