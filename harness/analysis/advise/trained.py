"""Trainings as advice needs them: which reached the target, when, and what the noise scale is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.analysis.advise.keys import rate_of, seed_of, speed_config
from harness.analysis.advise.measured import Place, pair_of
from harness.analysis.advise.types import BlockTime, Target
from harness.analysis.results import Results
from harness.analysis.training import Moment, Trained, TrainedPoint
from harness.stats import BlockKey, Interval, geometric_interval, mean_interval

_SEEDS = "seeds"


@dataclass(frozen=True)
class Run:
    """One training."""

    sweep: str
    pair: BlockKey
    seed: int
    trained: Trained


@dataclass(frozen=True)
class Training:
    """The trainings of one config, learning rate and place; seeds and blocks taken together."""

    place: Place
    rate: str  # JSON of the learning rate
    point: TrainedPoint  # its facts; of the first seed
    runs: tuple[Run, ...]

    @property
    def batch(self) -> int:
        """Return the declared batch."""
        return self.point.rank_batch if self.point.scaling == "weak" else self.point.global_batch

    @property
    def sweeps(self) -> tuple[str, ...]:
        """Return the sweeps that it is of."""
        return tuple(dict.fromkeys(run.sweep for run in self.runs))

    def hits(self, target: Target) -> list[tuple[Run, Moment | None]]:
        """Return each training with its first evaluation at or beyond the target."""
        sign = 1.0 if self.point.lower_is_better else -1.0
        return [
            (
                run,
                next(
                    (m for m in run.trained.moments if sign * m.value <= sign * target.value), None
                ),
            )
            for run in self.runs
        ]

    def best(self) -> float:
        """Return the best value of the metric that any evaluation of any of them had."""
        values = [moment.value for run in self.runs for moment in run.trained.moments]
        return min(values) if self.point.lower_is_better else max(values)


@dataclass(frozen=True)
class Reached:
    """What the target took in a training all of whose launches reached it."""

    training: Training
    epochs: tuple[tuple[BlockKey, float], ...]  # of each launch, to the target
    wall_s: Interval
    blocks: tuple[BlockTime, ...]  # of training to the target
    time_s: Interval


def trainings_of(results: Sequence[Results]) -> tuple[Training, ...]:
    """Return the trainings of all sweeps, in the order in which they are met."""
    groups: dict[tuple[Place, str, str], list[tuple[TrainedPoint, Run]]] = {}
    for index, one in enumerate(results):
        configs = dict(
            zip(one.table["run_id"].to_pylist(), one.table["config"].to_pylist(), strict=True)
        )
        for point in one.trainings:
            for trained in point.launches:
                config = configs[trained.run_id]
                place = Place(speed_config(config), point.backend, point.device, point.placement)
                pair = pair_of(trained.block, index, training=True)
                run = Run(one.name, pair, seed_of(config), trained)
                key = (place, rate_of(config), point.metric)
                groups.setdefault(key, []).append((point, run))
    return tuple(
        Training(key[0], key[1], found[0][0], tuple(run for _, run in found))
        for key, found in groups.items()
    )


def reached(training: Training, target: Target) -> Reached | None:
    """Return what the target took; None unless every launch reached it, after its first step."""
    hits = [(run, hit) for run, hit in training.hits(target) if hit is not None and hit.step > 0]
    if len(hits) < len(training.runs):
        return None
    units = [_unit(run, hits) for run, _ in hits]
    blocks = tuple(
        BlockTime(run.sweep, *run.trained.block, unit, hit.train_s)
        for unit, (run, hit) in zip(units, hits, strict=True)
    )
    return Reached(
        training=training,
        epochs=tuple((unit, hit.epoch) for unit, (_, hit) in zip(units, hits, strict=True)),
        wall_s=_mean((unit, hit.wall_s) for unit, (_, hit) in zip(units, hits, strict=True)),
        blocks=blocks,
        time_s=_mean((block.pair, block.time_s) for block in blocks),
    )


def epochs_at(found: Iterable[Reached]) -> Interval:
    """Return the epochs to the target over all trainings of one global batch and learning rate.

    They do not depend on where the ranks were, so the trainings of several places count alike.
    """
    return _mean(pair for one in found for pair in one.epochs)


def noise_scale(trainings: Sequence[Training]) -> Interval | None:
    """Return the interval of the mean of 1 / B_noise over evaluations, in 1 / samples.

    McCandlish et al. 2018: E = E_min (1 + B / B_noise). Where the noise scale grows along a
    training the epochs add up stretch by stretch, each with its own, so 1 / B_noise is averaged:
    |G|² / tr(Σ), each a mean over a point's launches. The estimate before the first step is left
    out: the gradient is large there, and for a moment. One evaluation has no interval. None where
    nobody estimated it, or where noise hides the gradient on average (1 / B_noise ≤ 0).
    """
    values = []
    for training in trainings:
        by_step: dict[int, list[Moment]] = {}
        for run in training.runs:
            for moment in run.trained.moments:
                if moment.step > 0 and moment.noise_trace is not None:
                    by_step.setdefault(moment.step, []).append(moment)
        for moments in by_step.values():
            trace = fmean(m.noise_trace for m in moments if m.noise_trace is not None)
            norms = [m.gradient_norm_sq for m in moments if m.gradient_norm_sq is not None]
            if trace > 0 and norms:
                values.append(fmean(norms) / trace)
    if not values:
        return None
    found = mean_interval({("evaluations", k): value for k, value in enumerate(values)})
    return found if found.estimate > 0 else None


def _unit(run: Run, hits: Sequence[tuple[Run, object]]) -> BlockKey:
    """Return what a training counts as: its seed where there are several, else its block.

    What seeds differ in is the spread of a training; blocks of one seed differ in time alone.
    """
    return (_SEEDS, run.seed) if len({one.seed for one, _ in hits}) > 1 else run.pair


def _mean(found: Iterable[tuple[BlockKey, float]]) -> Interval:
    values: dict[BlockKey, list[float]] = {}
    for key, value in found:
        values.setdefault(key, []).append(value)
    interval = geometric_interval({key: fmean(v) for key, v in values.items()})
    if all(key[0] == _SEEDS for key in values):
        return replace(interval, method=f"t, {interval.n} seeds")
    return interval
