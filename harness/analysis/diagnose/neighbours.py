"""The other points that a point is held against: its base, other batches, cycles and backends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.analysis.match import flat, is_base_of, own_launcher
from harness.analysis.scaling import Curve, Point

_BATCHES = frozenset({"batch_size", "global_batch_size"})
_CYCLE = frozenset({"horovod.cycle_time_ms"})
_BACKEND = frozenset({"backend", "launcher", "horovod.controller"})

Key = frozenset[tuple[str, str]]


class Neighbours:
    """All curves of a sweep, by what they differ in."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self._curves = tuple(curves)
        self._facts = {curve.config: flat(curve.config) for curve in curves}
        self._groups: dict[frozenset[str], dict[Key, list[Curve]]] = {}  # made when asked for

    def facts(self, curve: Curve) -> dict[str, str]:
        """Return a curve's config as flat text, with its defaults."""
        return self._facts[curve.config]

    def base_of(self, curve: Curve) -> Point | None:
        """Return the point that a curve is divided by; None where it has no base."""
        base = curve.base
        if base is None:
            return None
        fitting = [
            one
            for one in self._curves
            if one.engine == base.engine
            and one.device == curve.device
            and is_base_of(one.config, curve.config)
        ]
        fitting.sort(key=lambda one: not own_launcher(one.config))
        points = [p for one in fitting for p in one.points if p.world_size == base.devices]
        return points[0] if points else None

    def other_batch(self, curve: Curve, point: Point) -> Point | None:
        """Return the point at the same place whose batch is nearest by its ratio, or None."""
        others = [
            found
            for _, found in self._alike(curve, point, _BATCHES)
            if found.rank_batch != point.rank_batch
        ]
        return min(
            others,
            key=lambda one: (abs(math.log(one.rank_batch / point.rank_batch)), one.rank_batch),
            default=None,
        )

    def other_cycles(self, curve: Curve, point: Point) -> list[tuple[float, Point]]:
        """Return the points at the same place with another cycle time, in milliseconds."""
        return [
            (float(self.facts(other)["horovod.cycle_time_ms"]), found)
            for other, found in self._alike(curve, point, _CYCLE)
        ]

    def other_backends(self, curve: Curve, point: Point) -> list[tuple[Curve, Point]]:
        """Return the points at the same place that another backend reduced for."""
        return [
            (other, found)
            for other, found in self._alike(curve, point, _BACKEND)
            if other.backend != curve.backend
        ]

    def _alike(
        self, curve: Curve, point: Point, free: frozenset[str]
    ) -> Iterator[tuple[Curve, Point]]:
        """Yield the points at this point's place on curves that differ in ``free`` alone."""
        if free not in self._groups:
            groups: dict[Key, list[Curve]] = {}
            for one in self._curves:
                groups.setdefault(self._key(one, free), []).append(one)
            self._groups[free] = groups
        for other in self._groups[free][self._key(curve, free)]:
            for found in other.points if other is not curve else ():
                if found.placement == point.placement:
                    yield other, found

    def _key(self, curve: Curve, free: frozenset[str]) -> Key:
        """Return what curves that differ in ``free`` alone have in common."""
        kept = {key: value for key, value in self.facts(curve).items() if key not in free}
        kept |= {"device": curve.device}
        if "backend" not in free:
            kept |= {"backend": curve.backend or ""}  # in force, where the config leaves it open
        return frozenset(kept.items())
