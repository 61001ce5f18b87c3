"""Which points of a sweep ``exclude`` takes out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from harness.config.flat import Flat, flatten
from harness.config.load import GROUPS
from harness.config.models import RunConfig
from harness.errors import ConfigError, did_you_mean


def parse_exclude(entry: Mapping[str, Any], where: str) -> Flat:
    """Return an entry of ``exclude`` by paths; ConfigError on a key that no point has."""
    flat = flatten(entry)
    if not flat:
        raise ConfigError(f"{where}: exclude: an entry without keys")
    for key in flat:
        name, _, inner = key.partition(".")
        if name not in RunConfig.model_fields:
            near = did_you_mean(name, RunConfig.model_fields)
            raise ConfigError(f"{where}: exclude: {key}: unknown key{near}")
        # A workload's own options are known to the workload only.
        if inner and name != "workload" and inner not in _inner_fields(name):
            near = did_you_mean(inner, _inner_fields(name))
            raise ConfigError(f"{where}: exclude: {key}: unknown key{near}")
    return flat


def _inner_fields(name: str) -> list[str]:
    return list(GROUPS[name].model_fields) if name in GROUPS else []


def matches(row: Flat, entry: Flat) -> bool:
    """Say whether every key of ``entry`` has (one of) its values in ``row``, or by default."""

    def same(key: str, wanted: Any) -> bool:
        have = row[key] if key in row else row.get(f"{key}.name", _default(key))
        options = wanted if isinstance(wanted, list) else [wanted]
        return any(_equal(have, option) for option in options)

    return all(same(key, wanted) for key, wanted in entry.items())


def _equal(have: Any, wanted: Any) -> bool:
    if str(have) == str(wanted):
        return True
    if isinstance(have, bool) or isinstance(wanted, bool):
        return False
    try:
        return float(have) == float(wanted)  # 1 and 1.0, and numbers that YAML took for text
    except (TypeError, ValueError):
        return False


@lru_cache(maxsize=256)
def _default(key: str) -> Any:
    value: Any = RunConfig
    for name in key.split("."):
        if not (isinstance(value, type) and issubclass(value, BaseModel)):
            return None
        field = value.model_fields.get(name)
        if field is None or field.is_required():
            value = GROUPS.get(name) if field is not None else None
        else:
            default = field.get_default()
            value = type(default) if isinstance(default, BaseModel) else default
    return value
