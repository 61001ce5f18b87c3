"""Candidates and what they cost: an epoch, an epoch's progress, or training to a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.analysis.advise.keys import (
    Named,
    asks,
    labels,
    numerics_of,
    options_of,
    with_rate,
)
from harness.analysis.advise.measured import Place, Speed, time_interval
from harness.analysis.advise.trained import Reached, Training, epochs_at, reached
from harness.analysis.advise.types import Basis, BlockTime, Candidate, Factor, Target
from harness.stats import Interval

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Draft:
    """A candidate before it is told from the others."""

    config: str  # with the learning rate that it was trained with, where it was
    candidate: Candidate


def finished(drafts: Sequence[Draft]) -> tuple[Candidate, ...]:
    """Return the candidates, each with a label and the keys to ask for."""
    if not drafts:
        return ()
    ones = [draft.candidate for draft in drafts]
    named: list[Named] = [
        (draft.config, one.backend, one.device) for draft, one in zip(drafts, ones, strict=True)
    ]
    places = [(one.world_size, one.nodes, one.placement) for one in ones]
    asked = asks(named, [one.placement for one in ones])
    return tuple(
        replace(one, label=label, ask=ask)
        for one, label, ask in zip(ones, labels(named, places), asked, strict=True)
    )


def of_epochs(found: Iterable[Speed]) -> list[Draft]:
    """Return what an epoch costs at every measured point."""
    return [_draft(speed, speed.place.config, "measured", "", speed.blocks) for speed in found]


def of_progress(found: Iterable[Speed], noise: Interval) -> list[Draft]:
    """Return what the progress of one epoch with small batches costs: 1 + B / B_noise epochs.

    ``noise`` is 1 / B_noise, of ``trained.noise_scale``.
    """
    return [
        _draft(
            speed,
            speed.place.config,
            "noise scale",
            "epochs by the gradient noise scale",
            speed.blocks,
            factors=(_more(speed.global_batch, speed.place.config, noise),),
        )
        for speed in found
    ]


def of_target(
    found: Sequence[Speed], trained: Sequence[Training], target: Target, noise: Interval | None
) -> tuple[list[Draft], list[Speed]]:
    """Return what the target costs wherever that is known, and the points where it is not.

    ``found`` and ``trained`` are of one job, with one kind of numerics; ``noise`` is 1 / B_noise.
    """
    hits = {id(one): reached(one, target) for one in trained}
    by_place = {speed.place: speed for speed in found}
    drafts = [
        _trained(one, hit, by_place.get(one.place))
        for one in trained
        if (hit := hits[id(one)]) is not None
    ]
    unknown = []
    for speed in found:
        own = [
            draft
            for rate in dict.fromkeys(one.rate for one in trained)
            if (draft := _computed(speed, rate, trained, hits, noise)) is not None
        ]
        drafts += own
        if not own and all(one.place != speed.place for one in trained):
            unknown.append(speed)
    return drafts, unknown


def epoch_speeds(trained: Iterable[Training]) -> list[Speed]:
    """Return trainings as points, an epoch's time being that of the whole training's steps.

    What was trained for several metrics, or at several learning rates, is one point: the time of an
    epoch depends on neither.
    """
    places: dict[Place, list[Training]] = {}
    for one in trained:
        places.setdefault(one.place, []).append(one)
    made = (_epoch_speed(place, found) for place, found in places.items())
    return [one for one in made if one is not None]


def _epoch_speed(place: Place, found: Sequence[Training]) -> Speed | None:
    first = found[0]
    blocks = tuple(
        BlockTime(run.sweep, *run.trained.block, run.pair, last.train_s / last.epoch)
        for one in found
        for run in one.runs
        if (last := run.trained.moments[-1]).epoch > 0
    )
    if not blocks:
        return None
    return Speed(
        place=place,
        engine=first.point.engine,
        scaling=first.point.scaling,
        batch=first.batch,
        rank_batch=first.point.rank_batch,
        world_size=first.point.world_size,
        nodes=first.point.nodes,
        sweeps=tuple(dict.fromkeys(name for one in found for name in one.sweeps)),
        epoch_s=time_interval(blocks),
        blocks=blocks,
        efficiency=None,
        no_efficiency="trainings have no base",
    )


def _trained(one: Training, hit: Reached, speed: Speed | None) -> Draft:
    speeds = [speed] if speed else epoch_speeds([one])
    draft = _draft(speeds[0], with_rate(one.place.config, one.rate), "measured", "", hit.blocks)
    changed = replace(
        draft.candidate,
        sweeps=one.sweeps,
        time_s=hit.time_s,
        device_hours=hit.time_s.scaled(one.point.world_size / _HOUR_S),
        wall_s=hit.wall_s,
        epochs=epochs_at([hit]).estimate,
    )
    return replace(draft, candidate=changed)


def _computed(
    speed: Speed,
    rate: str,
    trained: Sequence[Training],
    hits: dict[int, Reached | None],
    noise: Interval | None,
) -> Draft | None:
    """Return the cost at a point that was not trained; None where nothing supports one."""
    alike = [one for one in trained if one.rate == rate]
    if any(one.place == speed.place for one in alike):
        return None  # what it costs, or that it does not get there, is known
    batch = speed.global_batch
    same = [one for one in alike if one.point.global_batch == batch]
    reference = same or alike
    good = [hit for one in reference if (hit := hits[id(one)]) is not None]
    if not good or (same and len(good) < len(same)):
        return None
    config = with_rate(speed.place.config, rate)
    if same:
        factor = _epochs(good)
        source = (
            f"epochs to the target as trained at global batch {batch} "
            f"({_where(good)}) × epoch time measured here"
        )
        return _draft(
            speed, config, "computed", source, speed.blocks, factors=(factor,),
            epochs=factor.estimate,
        )  # fmt: skip
    if noise is None:
        return None
    nearest = min((h.training.point.global_batch for h in good), key=lambda b: _apart(b, batch))
    start = _epochs([hit for hit in good if hit.training.point.global_batch == nearest])
    more = _relative(batch, nearest, speed.place.config, noise)
    source = (
        f"epochs to the target as trained at global batch {nearest}, carried to {batch} by the "
        "gradient noise scale, × epoch time measured here"
    )
    return _draft(
        speed, config, "noise scale", source, speed.blocks, factors=(start, more),
        epochs=start.estimate * more.estimate,
    )  # fmt: skip


def _draft(
    speed: Speed,
    config: str,
    basis: Basis,
    source: str,
    blocks: tuple[BlockTime, ...],
    *,
    factors: tuple[Factor, ...] = (),
    epochs: float | None = None,
) -> Draft:
    time_s = speed.epoch_s
    for factor in factors:
        time_s = times(time_s, factor)
    return Draft(
        config=config,
        candidate=Candidate(
            label="", ask={}, sweeps=speed.sweeps, device=speed.place.device, engine=speed.engine,
            backend=speed.place.backend, scaling=speed.scaling, batch=speed.batch,
            rank_batch=speed.rank_batch, global_batch=speed.global_batch,
            world_size=speed.world_size, nodes=speed.nodes, placement=speed.place.placement,
            options=options_of(speed.place.config), basis=basis, source=source, time_s=time_s,
            device_hours=time_s.scaled(speed.world_size / _HOUR_S), epoch_s=speed.epoch_s,
            epochs=epochs, wall_s=None, efficiency=speed.efficiency,
            no_efficiency=speed.no_efficiency, blocks=blocks, factors=factors, apart=speed.apart,
        ),
    )  # fmt: skip


def times(interval: Interval, factor: Factor) -> Interval:
    """Multiply ends by ends, which is never too narrow; without an interval there stays none."""
    if interval.low is None or interval.high is None:
        return replace(interval, estimate=interval.estimate * factor.estimate)
    return replace(
        interval,
        estimate=interval.estimate * factor.estimate,
        low=interval.low * min(factor.ends),
        high=interval.high * max(factor.ends),
    )


def _epochs(good: Sequence[Reached]) -> Factor:
    found = epochs_at(good)
    low = found.estimate if found.low is None else found.low
    high = found.estimate if found.high is None else found.high
    first = good[0].training
    numerics = numerics_of(first.place.config)
    source = f"epochs {first.point.global_batch} {first.rate} {numerics}"
    return Factor(found.estimate, (low, high), source)


def _more(batch: int, config: str, noise: Interval) -> Factor:
    """Return 1 + B / B_noise at both ends of 1 / B_noise."""
    low, high = noise_ends(noise)
    return Factor(
        1 + batch * noise.estimate,
        (1 + batch * low, 1 + batch * high),
        f"noise {numerics_of(config)}",
    )


def _relative(batch: int, other: int, config: str, noise: Interval) -> Factor:
    """Return (1 + B / B_noise) / (1 + B' / B_noise) at both ends of 1 / B_noise."""
    more, less = _more(batch, config, noise), _more(other, config, noise)
    low, high = (a / b for a, b in zip(more.ends, less.ends, strict=True))
    return Factor(more.estimate / less.estimate, (low, high), more.source)


def noise_ends(noise: Interval) -> tuple[float, float]:
    """Return the ends of 1 / B_noise, which is not below zero."""
    if noise.low is None or noise.high is None:
        return noise.estimate, noise.estimate
    return max(0.0, noise.low), noise.high


def _apart(a: int, b: int) -> float:
    return abs(math.log(a / b))


def _where(good: Sequence[Reached]) -> str:
    return ", ".join(dict.fromkeys(f"N={one.training.point.world_size}" for one in good))
