"""One rank of a launch that trains to an epoch count or a target, and evaluates on the way.

Training steps, evaluations, checkpoints and noise estimates are timed apart. The device is
synchronised at the ends of a stretch of steps, and nowhere between. Rank 0 evaluates its own model
while the others wait: weights are equal on all ranks, a BatchNorm's running statistics are rank
0's. All ranks hear what it found, so all of them go on, or stop, alike.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.config.models import RunConfig, Train
from harness.engines.api import Engine, Step, World
from harness.errors import LaunchError
from harness.feed.shard import Feed
from harness.learning_rate import Schedule, schedule
from harness.measure import gate, noise
from harness.measure.training import (
    Goal,
    Stretch,
    check_losses,
    evaluation_steps,
    first_reached,
    mean_loss,
)
from harness.record import Evaluation, NoiseEstimate, Training
from harness.store import write_atomic
from workloads.api import Samples, Workload

#: Losses wait on the device for the end of their stretch. A very long one brings them over now and
#: then, or they would fill the device.
KEPT_LOSSES = 10_000


@dataclass(frozen=True)
class Trainee:
    """One rank's part of a training, ready to run steps."""

    train: Train
    goal: Goal
    engine: Engine
    world: World
    step: Step
    feed: Feed
    schedule: Schedule
    rank_batch: int
    test: Callable[[], Samples]  # asked for by rank 0 alone
    folder: Path | None  # of checkpoints; needed by rank 0 alone


def trainee(
    config: RunConfig,
    train: Train,
    workload: Workload,
    engine: Engine,
    world: World,
    step: Step,
    feed: Feed,
    folder: Path | None,
) -> Trainee:
    """Return this rank's part of training ``workload`` as ``config`` has it."""
    info = workload.info
    if info.order == "streams":
        # Successive batches of a stream are no independent samples, and carried state belongs to
        # one place of it: the estimators would be biased.
        train = train.model_copy(update={"noise_scale": False})
    return Trainee(
        train=train,
        goal=Goal(info.target_metric, info.lower_is_better, train.target),
        engine=engine,
        world=world,
        step=step,
        feed=feed,
        schedule=schedule(config.learning_rate, info, config.global_batch, feed.steps_per_epoch),
        rank_batch=config.rank_batch,
        test=workload.test,
        folder=folder,
    )


def run_training(job: Trainee) -> Training:
    """Train to the end, on all ranks; each returns the same.

    Raises LaunchError, on all ranks alike, where a loss or metric is not finite, the ranks' weights
    differ at the end, or other bytes were reduced than gradient bytes × steps.
    """
    return _Run(job).run()


@dataclass
class _Run:
    """The state of one ``run_training``; but for ``noise_s`` equal on all ranks."""

    job: Trainee
    steps: int = 0
    train_s: float = 0.0
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    noise_s: float = 0.0
    evaluations: list[Evaluation] = field(default_factory=list)
    noise: list[NoiseEstimate] = field(default_factory=list)
    checkpoint: str | None = None
    _rate: float | None = None
    _test: Samples | None = None
    _started: float = 0.0

    def run(self) -> Training:
        job = self.job
        if job.world.rank == 0:
            if job.train.checkpoint and job.folder is None:
                raise LaunchError("train.checkpoint: this launch has no folder for it; set false")
            self._test = job.test()
        before = job.step.reduced().bytes
        job.engine.barrier()
        self._started = time.perf_counter()
        for stop in evaluation_steps(job.train, job.feed.steps_per_epoch):
            ranks = job.engine.gather(self._train_until(stop))
            check_losses(ranks)
            self.train_s += max(stretch.train_s for stretch in ranks)
            self.steps = stop
            value = self._evaluate(mean_loss(ranks))
            if job.train.checkpoint and stop:
                self._write_checkpoint()
            if job.train.noise_scale:
                self._estimate_noise()
            if job.goal.is_reached(value):
                break
        wall_s = time.perf_counter() - self._started
        return self._summarise(wall_s, job.step.reduced().bytes - before)

    def _train_until(self, stop: int) -> Stretch:
        """Run the steps up to ``stop``; the barrier before them is in nobody's time."""
        if stop == self.steps:
            return _stretch(stop, stop, 0.0, np.zeros(0))
        step, feed = self.job.step, self.job.feed
        feed.seek(feed.position)  # what was read ahead while nobody trained would cost nothing
        losses: list[Any] = []
        found: list[NDArray[np.float64]] = []
        self.job.engine.barrier()
        step.device_synchronise()
        started = time.perf_counter()
        for number in range(self.steps, stop):
            if number % feed.steps_per_epoch == 0:
                step.start_epoch()
            self._set_rate(self.job.schedule.at(number))
            losses.append(step.run(feed.next()))
            if len(losses) == KEPT_LOSSES:
                found.append(step.losses(losses))
                losses = []
        step.device_synchronise()
        train_s = time.perf_counter() - started
        found.append(step.losses(losses))
        return _stretch(self.steps, stop, train_s, np.concatenate(found))

    def _set_rate(self, rate: float) -> None:
        if rate != self._rate:
            self.job.step.set_learning_rate(rate)
            self._rate = rate

    def _evaluate(self, loss: float | None) -> float:
        """Let rank 0 evaluate and all ranks know; return the metric that training is for."""
        job, started = self.job, time.perf_counter()
        metrics: Mapping[str, float] | None = None
        if self._test is not None:
            metrics = {name: float(v) for name, v in job.step.evaluate(self._test).items()}
        ended = time.perf_counter()
        since_s = ended - self._started - self.noise_s
        ranks = job.engine.gather((metrics, ended - started, since_s))
        value = job.goal.value(ranks[0][0], self.steps)
        self.evaluation_s += max(evaluation_s for _, evaluation_s, _ in ranks)
        self.evaluations.append(
            Evaluation(
                step=self.steps,
                epoch=self.steps / job.feed.steps_per_epoch,
                train_s=self.train_s,
                wall_s=max(wall_s for _, _, wall_s in ranks),
                learning_rate=self._rate,
                loss=loss,
                metrics=ranks[0][0],
            )
        )
        return value

    def _write_checkpoint(self) -> None:
        """Let rank 0 write the weights, and take away those of the evaluation before."""
        job, started = self.job, time.perf_counter()
        name = f"checkpoint-{self.steps}.npz"
        if job.world.rank == 0:
            assert job.folder is not None  # see run
            write_weights(job.folder / name, job.step.weights())
            if self.checkpoint is not None:
                (job.folder / self.checkpoint).unlink(missing_ok=True)
        self.checkpoint = name
        self.checkpoint_s += max(job.engine.gather(time.perf_counter() - started))

    def _estimate_noise(self) -> None:
        job, started = self.job, time.perf_counter()
        norms = noise.measure_norms(job.step, job.feed, job.engine, job.world, job.rank_batch)
        self.noise.append(noise.estimate(norms, self.steps))
        job.step.device_synchronise()
        self.noise_s += time.perf_counter() - started

    def _summarise(self, wall_s: float, reduced_bytes: int) -> Training:
        job, goal, spe = self.job, self.job.goal, self.job.feed.steps_per_epoch
        ranks = job.engine.gather((wall_s, self.noise_s, reduced_bytes, job.step.checksum()))
        walls, noises, reduced, checksums = zip(*ranks, strict=True)
        gate.check_checksums(checksums)
        gate.check_reduced(
            reduced,
            self.steps,
            gradient_bytes=job.step.gradient_bytes,
            gradient_allreduce=job.step.gradient_allreduce,
            during="training",
        )
        hit = first_reached(self.evaluations, goal)
        return Training(
            steps=self.steps,
            epochs=self.steps / spe,
            samples=self.steps * job.rank_batch * job.world.size,
            steps_per_epoch=spe,
            metric=goal.metric,
            lower_is_better=goal.lower_is_better,
            target=goal.target,
            reached=None if goal.target is None else hit is not None,
            steps_to_target=hit.step if hit else None,
            train_s_to_target=hit.train_s if hit else None,
            wall_s_to_target=hit.wall_s if hit else None,
            train_s=self.train_s,
            evaluation_s=self.evaluation_s,
            checkpoint_s=self.checkpoint_s,
            noise_s=max(noises),
            wall_s=max(walls),
            evaluations=tuple(self.evaluations),
            noise=tuple(self.noise),
            parameter_checksum=checksums[0],
            gradient_allreduce=job.step.gradient_allreduce,
            bytes_reduced=reduced[0],
            checkpoint=self.checkpoint,
        )


def _stretch(first: int, stop: int, train_s: float, losses: NDArray[np.float64]) -> Stretch:
    bad = np.flatnonzero(~np.isfinite(losses))
    return Stretch(
        first=first,
        stop=stop,
        train_s=train_s,
        loss_sum=float(losses.sum()),
        bad_step=first + int(bad[0]) if len(bad) else None,
        bad_loss=float(losses[bad[0]]) if len(bad) else None,
    )


def write_weights(path: Path, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write weights by name as ``numpy.load`` reads them without pickle; whole or not at all.

    LaunchError where the file cannot be written.
    """
    buffer = io.BytesIO()
    # Not numpy.savez, whose own arguments no weight may be named after.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, values in weights.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)
    try:
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise LaunchError(f"{path}: the checkpoint cannot be written: {error.strerror}") from error
