"""Which launches belong together: the base of a point, and the points of a curve.

Configs are handled as the table has them: JSON without defaults, so that a key that a record's
version did not know yet is a key at its default.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from harness.config import Base, RunConfig
from harness.config.instruments import OFFERED
from harness.config.models import Measure
from harness.digits import whole
from harness.errors import AnalysisError

_DEFAULT_ENGINE = "horovod"
#: What a point and its base may differ in; of the last five more is said in ``is_base_of``.
_OF_ENGINE = ("launcher", "backend", "horovod", "ddp")
_FREE = ("engine", "placement", "placement_policy", "measure", *_OF_ENGINE)
_INSTRUMENTS: tuple[str, ...] = Measure.model_fields["instruments"].default


@dataclass(frozen=True)
class BaseName:
    """What speedup divides by: an engine on a number of devices."""

    engine: str
    devices: int

    def __str__(self) -> str:
        return f"{self.engine}@{self.devices}"

    @classmethod
    def parse(cls, name: str) -> BaseName:
        """Read ``engine@devices``; unlike in a sweep the count may be any, e.g. a node's."""
        engine, at, devices = name.partition("@")
        known = ("none", "horovod", "ddp")
        count = whole(devices)
        if not at or engine not in known or not count:
            raise AnalysisError(
                f"base '{name}' is no engine@devices, e.g. none@1 or horovod@4; "
                f"engines: {', '.join(known)}"
            )
        return cls(engine, count)


#: What a sweep that names no base divides by.
DEFAULT_BASE = BaseName(Base().engine, 1)


@lru_cache(maxsize=16384)
def parsed(config: str) -> Mapping[str, Any]:
    """Return the plain data of a config's JSON, read-only and with its engine written out."""
    data: dict[str, Any] = {"engine": _DEFAULT_ENGINE} | json.loads(config)
    return MappingProxyType(data)


@lru_cache(maxsize=16384)
def curve_key(config: str) -> str:
    """Return what all points of one curve share: the config without where its ranks are."""
    data = {key: value for key, value in parsed(config).items() if key != "placement"}
    return json.dumps(data, sort_keys=True)


@lru_cache(maxsize=16384)
def timeline_key(config: str) -> str:
    """Return what a point and the launch for its timeline share, where their ranks are excepted."""
    free = ("placement", "placement_policy", "measure")
    data = {key: value for key, value in parsed(config).items() if key not in free}
    return json.dumps(data, sort_keys=True)


def is_timeline(config: str | None) -> bool:
    """Say whether a config is that of a launch for a timeline; None is no config."""
    return config is not None and _instruments(parsed(config)) == ("timeline",)


def is_base_of(base: str, point: str) -> bool:
    """Say whether config ``base`` is what a sweep puts in the place of ``point`` as its base.

    The device counts are not looked at. Equal: workload, scaling, declared batch, data, execution,
    learning rate, cores, seed, and measure (its instruments as far as both engines have them). With
    the same engine also backend, launcher and tuning. With another engine the base has a launcher
    of its own (see ``own_launcher``); its backend is the point's where both have one (DDP has no
    MPI: there it is Gloo), and Horovod's tuning is unknown to a DDP point.
    """
    mine, other = parsed(base), parsed(point)
    keys = (set(mine) | set(other)) - set(_FREE)
    if any(mine.get(key) != other.get(key) for key in keys) or not _alike_measured(mine, other):
        return False
    if mine["engine"] == other["engine"]:
        return all(mine.get(key) == other.get(key) for key in _OF_ENGINE)
    if "none" in (mine["engine"], other["engine"]):
        return True
    wanted = other.get("backend")
    if mine["engine"] == "ddp" and wanted not in ("nccl", "gloo"):
        wanted = "gloo"
    return bool(mine.get("backend") == wanted)


@lru_cache(maxsize=16384)
def shared_key(config: str) -> Hashable:
    """Return what a base and its point have in common: only configs with one key can fit.

    So the bases of a curve are looked up; to try every config with every other takes the longer
    the more there are of both.
    """
    data = parsed(config)
    kept = {key: value for key, value in data.items() if key not in _FREE and value is not None}
    return _hashable(kept)


def _hashable(value: Any) -> Hashable:
    """Return data that is equal where ``value`` is, as 1 and 1.0 are."""
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(one)) for key, one in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _alike_measured(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    both = set(OFFERED[mine["engine"]]) & set(OFFERED[other["engine"]])
    if set(_instruments(mine)) & both != set(_instruments(other)) & both:
        return False
    rest = [dict(config.get("measure", {})) for config in (mine, other)]
    for measure in rest:
        measure.pop("instruments", None)
    return rest[0] == rest[1]


def _instruments(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(config.get("measure", {}).get("instruments", _INSTRUMENTS))


def flat(config: str) -> dict[str, str]:
    """Return a config as flat text with its defaults: ``{"horovod.cycle_time_ms": "1", ...}``.

    Without what has no value, and without the tuning of engines that are not this one.
    """
    found: dict[str, str] = {}

    def walk(data: Mapping[str, Any], prefix: str) -> None:
        for key, value in data.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            elif isinstance(value, list):
                found[f"{prefix}{key}"] = " + ".join(map(str, value)) or "none"
            elif value is not None:
                found[f"{prefix}{key}"] = _short(value) if isinstance(value, float) else str(value)

    whole = RunConfig.model_validate_json(config).model_dump(mode="json")
    # A curve's config has no placement, without which a policy would count for nothing.
    whole["placement_policy"] = parsed(config).get("placement_policy", whole["placement_policy"])
    for engine in {"horovod", "ddp"} - {whole["engine"]}:
        del whole[engine]
    walk(whole, "")
    return found


def _short(value: float) -> str:
    """Return a number in as few digits as tell it from any other."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def own_launcher(config: str) -> bool:
    """Say whether a config leaves its launcher open, as ``expand`` has a base of another engine."""
    return parsed(config).get("launcher") is None
