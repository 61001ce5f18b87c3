"""A ``Sweep`` multiplied out into points, each with the base it is divided by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from pydantic import BaseModel

from harness.config.exclude import matches, parse_exclude
from harness.config.faults import validated
from harness.config.flat import Flat, flatten, is_axis, nest
from harness.config.identity import point_id
from harness.config.instruments import OFFERED, bench_measure, timeline_config
from harness.config.load import GROUPS
from harness.config.models import Base, Measure, RunConfig, Sweep
from harness.config.tuning_presets import with_preset_in_row
from harness.config.yaml_dialect import dump
from harness.errors import ConfigError

MAX_POINTS = 100_000
#: Combinations of axes, of which ``exclude`` may leave few: each is made and looked at.
MAX_COMBINATIONS = 1_000_000
#: Looks of ``exclude``'s entries at combinations.
MAX_LOOKS = 5_000_000
#: Nodes of all points' explicit placements together; a point keeps the devices of each node.
MAX_NODES = 10_000_000
_MEASURE = Measure()


@dataclass(frozen=True)
class Expansion:
    """The points of a sweep in the order written, and for each the base it is divided by.

    ``bases`` is as long as ``points``; None where the sweep has no base. ``named`` says whether a
    point was asked for by name (the only one, or an ``include``), rather than by multiplication.
    ``timelines`` are the launches for Horovod's timeline, as long as ``points``, None where a point
    has none.
    """

    points: tuple[RunConfig, ...]
    bases: tuple[RunConfig | None, ...]
    named: tuple[bool, ...]
    timelines: tuple[RunConfig | None, ...]

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
    points: dict[tuple[Any, ...], tuple[RunConfig, RunConfig | None, bool, RunConfig | None]] = {}
    made = _Configs(where)
    bases = _Bases(sweep.base, devices_per_node, made)
    instruments = _Instruments(where)
    nodes = 0
    for row, included in rows:
        values = made.values(row)
        config = made.fitted(values)
        nodes += len(config.placement.devices)
        if nodes > MAX_NODES:
            raise ConfigError(f"{where}: placement: more than {MAX_NODES} nodes in all points")
        timeline = instruments.seen(config, values)
        key = _key(vars(config))
        named = included or not many or (key in points and points[key][2])
        points[key] = (config, bases.of(config, values), named, timeline)
    if not points:
        raise ConfigError(f"{where}: exclude leaves no points")
    instruments.check()
    longest_s = max(point[0].measure.window_s for point in points.values())
    if longest_s >= sweep.measure.timeout_s:
        raise ConfigError(
            f"{where}: measure.window_s: {longest_s:g} s cannot end within measure.timeout_s: "
            f"{sweep.measure.timeout_s:g} s; make the window shorter or the time limit longer"
        )
    configs, based, named_flags, timelines = zip(*points.values(), strict=True)
    return Expansion(configs, based, named_flags, timelines)


class _Configs:
    """Rows as checked configs that share their parts, which makes checking and comparing cheap.

    Thousands of points have a handful of different ``horovod`` or ``measure`` groups. Each is
    checked once, and equal ones are one object, so that a point's identity is a tuple of its plain
    values and of the identities of its parts.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._by_text: dict[tuple[str, str], BaseModel] = {}
        defaults = ((name, RunConfig.model_fields[name].default) for name in GROUPS)
        self._parts: dict[tuple[str, str], BaseModel] = {
            (name, part.model_dump_json()): part
            for name, part in defaults
            if isinstance(part, BaseModel)
        }

    def values(self, row: Flat) -> dict[str, Any]:
        """Return a row as the arguments of a RunConfig, its groups checked."""
        nested = nest(row)
        for name in GROUPS:
            if name in nested:
                nested[name] = self._part(name, nested[name])
        return nested

    def fitted(self, values: Mapping[str, Any], what: str = "") -> RunConfig:
        """Return a checked config whose instruments are those that its engine has."""
        config = validated(RunConfig, values, f"{self._where}{what}")
        measure = bench_measure(config.engine, config.measure)
        if measure is config.measure:
            return config
        shared = self._parts.setdefault(("measure", measure.model_dump_json()), measure)
        return config.model_copy(update={"measure": shared})

    def _part(self, name: str, data: Any) -> BaseModel:
        # The text keeps 1, 1.0 and True apart, which are equal but not equally legal.
        text = (name, repr(data))
        if text not in self._by_text:
            part = validated(GROUPS[name], data, self._where, name)
            self._by_text[text] = self._parts.setdefault((name, part.model_dump_json()), part)
        return self._by_text[text]


class _Instruments:
    """What points ask for, and whether any engine of the sweep has it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._had: set[str] = set()
        self._lacked: dict[str, str] = {}

    def seen(self, config: RunConfig, values: Mapping[str, Any]) -> RunConfig | None:
        """Note what a point asks for; return its launch for a timeline, if it has one."""
        wanted: Measure = values.get("measure", _MEASURE)
        timeline = timeline_config(config, wanted)
        for name in wanted.instruments:
            if name in config.measure.instruments or (name == "timeline" and timeline):
                self._had.add(name)
            else:
                self._lacked.setdefault(name, config.engine)
        return timeline

    def check(self) -> None:
        """Raise ConfigError for an instrument that no point of the sweep has."""
        for name, engine in self._lacked.items():
            if name in self._had:
                continue
            if name == "timeline" and engine == "horovod":
                raise ConfigError(
                    f"{self._where}: measure.instruments: timeline needs a point of 2 ranks or "
                    "more: alone, Horovod reduces nothing"
                )
            raise ConfigError(
                f"{self._where}: measure.instruments: no engine of this sweep has {name}; "
                f"{engine} has: {', '.join(OFFERED[engine])}"
            )


def _key(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what is equal for equal values with shared parts, as a key of a dictionary."""
    return tuple(id(value) if name in GROUPS else value for name, value in values.items())


class _Bases:
    """The base of each point. Many points share one, so each is made and checked once."""

    def __init__(self, base: Base | None, devices_per_node: int, configs: _Configs) -> None:
        self._base = base
        self._configs = configs
        self._made: dict[tuple[Any, ...], RunConfig] = {}
        node = base is not None and base.placement == "node"
        self._placement = f"1x{devices_per_node}" if node else str(base.placement if base else "")

    def of(self, config: RunConfig, values: Mapping[str, Any]) -> RunConfig | None:
        """Return the base of ``config``, which was made of ``values``."""
        if self._base is None:
            return None
        wanted = self._values(config, values, self._base)
        key = (*wanted, *_key(wanted))
        if key not in self._made:
            self._made[key] = self._configs.fitted(wanted, ", base")
        return self._made[key]

    def _values(self, config: RunConfig, values: Mapping[str, Any], base: Base) -> dict[str, Any]:
        wanted = {**values, "engine": base.engine, "placement": self._placement}
        wanted.pop("placement_policy", None)
        if base.engine == config.engine:
            return wanted
        # The base takes its own launcher and backend: the point's may not be legal for it.
        wanted.pop("launcher", None)
        if base.engine != "horovod":
            wanted.pop("backend", None)
            wanted.pop("horovod", None)
        if base.engine == "ddp":
            wanted["backend"] = config.backend if config.backend in ("nccl", "gloo") else "gloo"
        return wanted


def _rows(sweep: Sweep, where: str) -> Iterator[tuple[Flat, bool]]:
    """Yield each point as flat ``a.b: value`` data, and whether an ``include`` named it."""
    flat = flatten(sweep.point)
    _check_zip(sweep.zip, flat, where)
    excludes = [parse_exclude(entry, where) for entry in sweep.exclude]
    vain = set(range(len(excludes)))
    count = looked_at = 0
    for named, source in _sources(flat, sweep):
        included = named is not None
        for made in _multiply(source, sweep.zip, where):
            looked_at += 1
            if looked_at > MAX_COMBINATIONS:
                raise ConfigError(
                    f"{where}: more than {MAX_COMBINATIONS} combinations, exclude among them"
                )
            if looked_at * len(excludes) > MAX_LOOKS:
                raise ConfigError(f"{where}: exclude: too many entries for so many combinations")
            row = with_preset_in_row(made, named or ())
            if not included:
                hits = [index for index, entry in enumerate(excludes) if matches(row, entry)]
                vain.difference_update(hits)
                if hits:
                    continue
            count += 1
            if count > MAX_POINTS:
                raise ConfigError(f"{where}: more than {MAX_POINTS} points")
            yield row, included
    if vain:
        entry = dump(sweep.exclude[min(vain)], flow=True)
        raise ConfigError(f"{where}: exclude: no point is like {entry}; take it out, or correct it")


def _sources(flat: Flat, sweep: Sweep) -> Iterator[tuple[Flat | None, Flat]]:
    """Yield what is multiplied out: the sweep itself, and each ``include`` with what it names."""
    yield None, flat
    for entry in sweep.include:
        named = flatten(entry)
        # An include fixes what it names; of every other axis it takes the first value, so that
        # one entry is one point unless it has lists of its own.
        rest = {k: v[0] if is_axis(k, v) and v else v for k, v in flat.items()}
        if "global_batch_size" in named or named.get("scaling") == "strong":
            rest.pop("batch_size", None)
        if "batch_size" in named or named.get("scaling") == "weak":
            rest.pop("global_batch_size", None)
        yield named, {**rest, **named}


def _multiply(flat: Flat, zips: tuple[tuple[str, ...], ...], where: str) -> Iterator[Flat]:
    axes = {key: value for key, value in flat.items() if is_axis(key, value)}
    for key, values in axes.items():
        if not values:
            raise ConfigError(f"{where}: {key}: an empty list has no points")
    groups: list[list[Flat]] = []
    together: set[str] = set()
    for group in zips:
        groups.append(_zipped(group, axes, where))
        together |= set(group)
    groups += [[{k: v} for v in values] for k, values in axes.items() if k not in together]
    fixed = {key: value for key, value in flat.items() if key not in axes}
    for choice in product(*groups):
        row = dict(fixed)
        for part in choice:
            row.update(part)
        yield row


def _check_zip(zips: tuple[tuple[str, ...], ...], flat: Flat, where: str) -> None:
    seen: set[str] = set()
    for key in chain.from_iterable(zips):
        if key not in flat:
            raise ConfigError(f"{where}: zip: {key} is not a key of this sweep")
        if not is_axis(key, flat[key]):
            raise ConfigError(f"{where}: zip: {key} is no list; only axes can go together")
        if key in seen:
            raise ConfigError(f"{where}: zip: {key} is there twice; it can go together but once")
        seen.add(key)


def _zipped(group: tuple[str, ...], axes: Flat, where: str) -> list[Flat]:
    inside = [key for key in group if key in axes]  # an include may have fixed some of them
    lengths = {len(axes[key]) for key in inside}
    if len(lengths) > 1:
        sizes = ", ".join(f"{key} has {len(axes[key])}" for key in inside)
        raise ConfigError(f"{where}: zip: the axes must be of one length ({sizes})")
    if not inside:
        return [{}]
    together = zip(*(axes[key] for key in inside), strict=True)
    return [dict(zip(inside, values, strict=True)) for values in together]
