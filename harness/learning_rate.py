"""The learning rate of a step: how it follows the global batch, and how a training warms up to it.

A rule scales the base rate η, which was found at the base batch, with k = global batch / base
batch: ``none`` leaves it at η, ``linear`` makes it kη (Goyal et al., Accurate, Large Minibatch SGD:
Training ImageNet in 1 Hour, 2017, section 2.1), ``sqrt`` √k·η (Krizhevsky, One weird trick for
parallelizing convolutional neural networks, 2014: the variance of an update stays).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from harness.config.models import LearningRate
from workloads.api import WorkloadInfo


@dataclass(frozen=True)
class Schedule:
    """The rate of every step of a training: from ``start`` to ``rate``, and there it stays.

    The gradual warm-up of Goyal et al. 2017, section 2.2: it begins at the base rate η, grows by
    the same amount in every step, and reaches what the rule says after ``warmup_steps``, which need
    not be whole. Where the rule does not raise the rate there is nothing to warm up to.
    """

    start: float
    rate: float
    warmup_steps: float

    def at(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if step >= self.warmup_steps or self.rate <= self.start:
            return self.rate
        return self.start + (self.rate - self.start) * step / self.warmup_steps


def schedule(
    wanted: LearningRate, info: WorkloadInfo, global_batch: int, steps_per_epoch: int
) -> Schedule:
    """Return the schedule of a training with ``steps_per_epoch`` global batches an epoch."""
    return Schedule(
        start=_base(wanted, info),
        rate=learning_rate(wanted, info, global_batch),
        warmup_steps=wanted.warmup_epochs * steps_per_epoch,
    )


def learning_rate(wanted: LearningRate, info: WorkloadInfo, global_batch: int) -> float:
    """Return the rate in force: base × (global batch / base batch) to the rule's power."""
    base_batch = wanted.base_batch if wanted.base_batch is not None else info.learning_rate_batch
    ratio = global_batch / base_batch
    return _base(wanted, info) * {"none": 1.0, "sqrt": sqrt(ratio), "linear": ratio}[wanted.rule]


def _base(wanted: LearningRate, info: WorkloadInfo) -> float:
    return wanted.base if wanted.base is not None else info.learning_rate
