"""What a training comes to: its evaluations, from what every rank says of a stretch of steps. Pure.

A *stretch* is the training steps between two evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.config.models import Train
from harness.errors import LaunchError
from harness.record import Evaluation


@dataclass(frozen=True)
class Stretch:
    """One rank's steps between two evaluations."""

    first: int  # step, from 0
    stop: int  # the step after the last
    train_s: float  # device synchronised at both ends
    loss_sum: float  # of all its steps; not finite where one is not
    bad_step: int | None  # the first whose loss is not finite
    bad_loss: float | None


@dataclass(frozen=True)
class Goal:
    """The metric that a training is for, and the value that ends it; None: only epochs do."""

    metric: str
    lower_is_better: bool
    target: float | None

    def value(self, metrics: Mapping[str, float], step: int) -> float:
        """Return the metric; LaunchError where it was not evaluated, or any is not finite."""
        if self.metric not in metrics:
            raise LaunchError(
                f"the evaluation gives {', '.join(sorted(metrics)) or 'nothing'}, and not the "
                f"workload's target metric {self.metric}"
            )
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise LaunchError(
                    f"{name} is {value} at the evaluation after step {step}: lower the learning "
                    "rate, or look at the data"
                )
        return metrics[self.metric]

    def is_reached(self, value: float) -> bool:
        """Say whether ``value`` ends the training."""
        if self.target is None:
            return False
        return value <= self.target if self.lower_is_better else value >= self.target


def total_steps(train: Train, steps_per_epoch: int) -> int:
    """Return the steps of ``train.epochs``, rounded up: at least that much is trained."""
    return max(1, _whole(train.epochs * steps_per_epoch))


def evaluation_steps(train: Train, steps_per_epoch: int) -> Iterator[int]:
    """Yield after how many steps the model is evaluated: at first, every so often, at the end.

    Each step at most once, however often evaluations are asked for.
    """
    total = total_steps(train, steps_per_epoch)
    between = max(1.0, train.evaluate_every * steps_per_epoch)
    yield 0
    count = 1
    while (stop := _whole(count * between)) < total:
        yield stop
        count += 1
    yield total


def _whole(steps: float) -> int:
    return math.ceil(round(steps, 6))  # 0.1 · 30 is a little more than 3


def check_losses(ranks: Sequence[Stretch]) -> None:
    """Raise LaunchError for the first loss that is not finite: which rank, which step."""
    for rank, stretch in enumerate(ranks):
        if stretch.bad_step is not None:
            raise LaunchError(
                f"NaN loss: the loss of rank {rank} is {stretch.bad_loss} at step "
                f"{stretch.bad_step}, among steps {stretch.first} to {stretch.stop - 1} since the "
                "evaluation before; lower the learning rate, or look at the data"
            )


def mean_loss(ranks: Sequence[Stretch]) -> float | None:
    """Return the mean over ranks and steps; None where there were no steps."""
    steps = sum(stretch.stop - stretch.first for stretch in ranks)
    return sum(stretch.loss_sum for stretch in ranks) / steps if steps else None


def first_reached(evaluations: Sequence[Evaluation], goal: Goal) -> Evaluation | None:
    """Return the first evaluation at which the target was reached."""
    return next((one for one in evaluations if goal.is_reached(one.metrics[goal.metric])), None)
