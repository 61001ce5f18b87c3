"""A ``Sweep`` multiplied out into points, each with the base it is divided by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from harness.config.identity import point_id
from harness.config.load import validated
from harness.config.models import Base, RunConfig, Sweep
from harness.errors import ConfigError

MAX_POINTS = 100_000
_LIST_VALUED = frozenset({"measure.instruments"})  # a list here is one value, not an axis

Flat = dict[str, Any]


@dataclass(frozen=True)
class Expansion:
    """The points of a sweep in the order written, and for each the base it is divided by.

    ``bases`` is as long as ``points``; None where the sweep has no base. ``named`` says whether a
    point was asked for by name (the only one, or an ``include``), rather than by multiplication.
    """

    points: tuple[RunConfig, ...]
    bases: tuple[RunConfig | None, ...]
    named: tuple[bool, ...]

    def launches(self) -> tuple[RunConfig, ...]:
        """Return the distinct points and bases: what one block launches once each."""
        found = {point_id(c): c for c in (*self.bases, *self.points) if c is not None}
        return tuple(found.values())


def expand(sweep: Sweep, devices_per_node: int = 1) -> Expansion:
    """Multiply out the axes; ``devices_per_node`` resolves ``base: node``.

    Raises ConfigError on a value that is no legal value of its key, naming the key.
    """
    where = f"sweep {sweep.name}"
    rows = list(_rows(sweep, where))
    many = len(rows) > 1
    points: dict[str, tuple[RunConfig, RunConfig | None, bool]] = {}
    bases = _Bases(sweep.base, devices_per_node, where)
    for row, included in rows:
        config = validated(RunConfig, _nest(row), where)
        key = point_id(config)
        named = included or not many or (key in points and points[key][2])
        points[key] = (config, bases.of(config, row), named)
    if not points:
        raise ConfigError(f"{where}: exclude leaves no points")
    configs, based, named_flags = zip(*points.values(), strict=True)
    return Expansion(configs, based, named_flags)


class _Bases:
    """The base of each point. Many points share one, so each is made and checked once."""

    def __init__(self, base: Base | None, devices_per_node: int, where: str) -> None:
        self._base = base
        self._where = f"{where}, base"
        self._made: dict[str, RunConfig] = {}
        node = base is not None and base.placement == "node"
        self._placement = f"1x{devices_per_node}" if node else str(base.placement if base else "")

    def of(self, config: RunConfig, row: Flat) -> RunConfig | None:
        if self._base is None:
            return None
        wanted = self._row(config, row, self._base)
        key = repr(sorted(wanted.items(), key=lambda item: item[0]))
        if key not in self._made:
            self._made[key] = validated(RunConfig, _nest(wanted), self._where)
        return self._made[key]

    def _row(self, config: RunConfig, row: Flat, base: Base) -> Flat:
        wanted = row | {"engine": base.engine, "placement": self._placement}
        wanted.pop("placement_policy", None)
        if base.engine == config.engine:
            return wanted
        # The base takes its own launcher and backend: the point's may not be legal for it.
        wanted.pop("launcher", None)
        if base.engine != "horovod":
            wanted.pop("backend", None)
            wanted = {k: v for k, v in wanted.items() if k.split(".")[0] != "horovod"}
        if base.engine == "ddp":
            wanted["backend"] = config.backend if config.backend in ("nccl", "gloo") else "gloo"
        return wanted


def _rows(sweep: Sweep, where: str) -> Iterator[tuple[Flat, bool]]:
    """Yield each point as flat ``a.b: value`` data, and whether an ``include`` named it."""
    flat = _flatten(sweep.point)
    excludes = [_flatten(entry) for entry in sweep.exclude]
    count = 0
    for included, source in _sources(flat, sweep):
        for row in _multiply(source, sweep.zip, where):
            if not included and any(_matches(row, entry) for entry in excludes):
                continue
            count += 1
            if count > MAX_POINTS:
                raise ConfigError(f"{where}: more than {MAX_POINTS} points")
            yield row, included


def _sources(flat: Flat, sweep: Sweep) -> Iterator[tuple[bool, Flat]]:
    yield False, flat
    for entry in sweep.include:
        named = _flatten(entry)
        # An include fixes what it names; of every other axis it takes the first value, so that
        # one entry is one point unless it has lists of its own.
        rest = {k: v[0] if _is_axis(k, v) and v else v for k, v in flat.items()}
        if "global_batch_size" in named or named.get("scaling") == "strong":
            rest.pop("batch_size", None)
        if "batch_size" in named or named.get("scaling") == "weak":
            rest.pop("global_batch_size", None)
        yield True, {**rest, **named}


def _multiply(flat: Flat, zips: tuple[tuple[str, ...], ...], where: str) -> Iterator[Flat]:
    axes = {key: value for key, value in flat.items() if _is_axis(key, value)}
    for key, values in axes.items():
        if not values:
            raise ConfigError(f"{where}: {key}: an empty list has no points")
    groups: list[list[Flat]] = []
    together: set[str] = set()
    for group in zips:
        groups.append(_zipped(group, axes, flat, where))
        together |= set(group)
    groups += [[{k: v} for v in values] for k, values in axes.items() if k not in together]
    fixed = {key: value for key, value in flat.items() if key not in axes}
    for choice in product(*groups):
        row = dict(fixed)
        for part in choice:
            row.update(part)
        yield row


def _zipped(group: tuple[str, ...], axes: Flat, flat: Flat, where: str) -> list[Flat]:
    for key in group:
        if key not in flat:
            raise ConfigError(f"{where}: zip: {key} is not a key of this sweep")
    inside = [key for key in group if key in axes]
    lengths = {len(axes[key]) for key in inside}
    if len(lengths) > 1:
        sizes = ", ".join(f"{key} has {len(axes[key])}" for key in inside)
        raise ConfigError(f"{where}: zip: the axes must be of one length ({sizes})")
    if not inside:
        return [{}]
    return [dict(zip(inside, values, strict=True)) for values in zip(*(axes[k] for k in inside))]


def _is_axis(key: str, value: Any) -> bool:
    if not isinstance(value, list):
        return False
    # A list of lists would be an axis over instrument sets.
    return key not in _LIST_VALUED or any(isinstance(inner, list) for inner in value)


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Flat:
    flat: Flat = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and key != "options":
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _nest(flat: Flat) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        target = nested
        for parent in parents:
            target = target.setdefault(parent, {})
            if isinstance(target, str):  # workload: name, beside workload.samples
                raise ConfigError(f"{path}: {parent} is a value and cannot have keys below it")
        target[last] = value
    return nested


def _matches(row: Flat, entry: Flat) -> bool:
    def same(key: str, wanted: Any) -> bool:
        have = row.get(key, row.get(f"{key}.name"))
        options = wanted if isinstance(wanted, list) else [wanted]
        return any(str(have) == str(option) for option in options)

    return bool(entry) and all(same(key, wanted) for key, wanted in entry.items())
