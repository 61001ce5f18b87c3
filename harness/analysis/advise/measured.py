"""Epoch times: the points of all sweeps, those of one config and place taken together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.advise.keys import speed_config
from harness.analysis.advise.types import BlockTime
from harness.analysis.points import Launch, Point
from harness.analysis.results import Results
from harness.analysis.scaling import Apart, Curve
from harness.analysis.welch import log_ratio_interval
from harness.config.models import MAX_BLOCKS
from harness.stats import (
    LEVEL,
    BlockKey,
    Interval,
    geometric_interval,
    log_mean_interval,
)


@dataclass(frozen=True)
class Place:
    """Which config, on which devices."""

    config: str  # ``speed_config`` of it
    backend: str | None
    device: str
    placement: str


@dataclass(frozen=True)
class Speed:
    """A measured point: the time of an epoch, and its efficiency where it has a base."""

    place: Place
    engine: str
    scaling: str
    batch: int
    rank_batch: int
    world_size: int
    nodes: int
    sweeps: tuple[str, ...]
    epoch_s: Interval
    blocks: tuple[BlockTime, ...]  # of an epoch
    efficiency: Interval | None
    no_efficiency: str | None
    apart: Apart | None = None  # where the base of ``efficiency`` is, if none is in its blocks

    @property
    def global_batch(self) -> int:
        """Return the samples of all ranks and one step."""
        return self.rank_batch * self.world_size


@dataclass(frozen=True)
class _Found:
    sweep: int
    results: Results
    curve: Curve
    point: Point


def speeds(results: Sequence[Results], level: float = LEVEL) -> tuple[Speed, ...]:
    """Return every measured point once, in the order in which they are met."""
    groups: dict[Place, list[_Found]] = {}
    for index, one in enumerate(results):
        for curve in one.curves:
            config = speed_config(curve.config)
            for point in curve.points:
                place = Place(config, curve.backend, curve.device, point.placement)
                groups.setdefault(place, []).append(_Found(index, one, curve, point))
    return tuple(_speed(place, found, level) for place, found in groups.items())


def pair_of(block: BlockKey, sweep: int, training: bool) -> BlockKey:
    """Return a block's key among those of several sweeps, of windows and of trainings.

    Blocks of one host or job stay in one allocation; block 0 of a sweep is not that of another.
    """
    allocation, repeat = block
    return allocation, repeat + MAX_BLOCKS * (2 * sweep + training)


def time_interval(blocks: Iterable[BlockTime], level: float = LEVEL) -> Interval:
    """Return the interval of the geometric mean of times, blocks with several counting once."""
    return geometric_interval(_by_pair((b.pair, b.time_s) for b in blocks), level)


def _speed(place: Place, found: Sequence[_Found], level: float) -> Speed:
    first = found[0]
    launches = [(one, launch) for one in found for launch in one.point.launches]
    blocks = tuple(
        BlockTime(one.results.name, *launch.block, _pair(one, launch), launch.epoch_s)
        for one, launch in launches
    )
    sequential = any(one.point.sequential for one in found)
    paired = _efficiency(launches, level)
    efficiency, apart = (paired, None) if paired else _efficiency_apart(found, level)
    epoch_s = time_interval(blocks, level)
    note = next((one.curve.note for one in found if one.curve.note), None)
    return Speed(
        place=place,
        engine=first.curve.engine,
        scaling=first.curve.scaling,
        batch=first.curve.batch,
        rank_batch=first.point.rank_batch,
        world_size=first.point.world_size,
        nodes=first.point.nodes,
        sweeps=tuple(dict.fromkeys(one.results.name for one in found)),
        epoch_s=epoch_s.sequential() if sequential else epoch_s,
        blocks=blocks,
        efficiency=efficiency.sequential() if efficiency and sequential else efficiency,
        no_efficiency=None if efficiency else note or "none of its blocks has a base",
        apart=apart,
    )


def _efficiency(launches: Sequence[tuple[_Found, Launch]], level: float) -> Interval | None:
    found = [
        (_pair(one, launch), launch.speedup * one.curve.base.devices / one.point.world_size)
        for one, launch in launches
        if launch.speedup is not None and one.curve.base is not None
    ]
    if not found:
        return None
    return log_mean_interval({k: math.log(v) for k, v in _by_pair(found).items()}, level)


def _efficiency_apart(
    found: Sequence[_Found], level: float
) -> tuple[Interval | None, Apart | None]:
    """Return E by the means of sweeps whose base is in none of the point's blocks, and where."""
    kept = [one for one in found if one.point.apart and one.curve.base is not None]
    point = _by_pair(
        (_pair(one, launch), launch.throughput_samples_per_s / one.point.world_size)
        for one in kept
        for launch in one.point.launches
    )
    base = {
        pair_of(block, one.sweep, training=False): rate / one.curve.base.devices
        for one in kept
        for block, rate in one.curve.base_rates.items()
        if one.curve.base is not None
    }
    if not kept:
        return None, None
    everywhere = all(one.curve.apart == "other jobs" for one in kept)
    return log_ratio_interval(point, base, level), "other jobs" if everywhere else "other blocks"


def _pair(found: _Found, launch: Launch) -> BlockKey:
    return pair_of(launch.block, found.sweep, training=False)


def _by_pair(found: Iterable[tuple[BlockKey, float]]) -> Mapping[BlockKey, float]:
    values: dict[BlockKey, list[float]] = {}
    for key, value in found:
        values.setdefault(key, []).append(value)
    return {key: math.exp(sum(map(math.log, v)) / len(v)) for key, v in values.items()}
