"""Which points of a sweep ``exclude`` takes out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, create_model

from harness.config.faults import validated
from harness.config.flat import Flat, flatten, is_axis
from harness.config.load import GROUPS
from harness.config.models import Frozen, RunConfig
from harness.config.placement import Placement
from harness.config.tuning_presets import PATH
from harness.errors import ConfigError, did_you_mean

#: By path, the values of which a point has (one of) them to be taken out.
Entry = dict[str, tuple[Any, ...]]


def parse_exclude(entry: Mapping[str, Any], where: str) -> Entry:
    """Return an entry of ``exclude`` by paths; ConfigError on a key or value no point can have."""
    flat = flatten(entry)
    if not flat:
        raise ConfigError(f"{where}: exclude: an entry without keys")
    wanted: Entry = {}
    for key, value in flat.items():
        path = f"{key}.name" if key == "workload" and not isinstance(value, Mapping) else key
        _check_key(path, where)
        values = value if is_axis(path, value) else [value]
        if not values:
            raise ConfigError(f"{where}: exclude: {key}: an empty list is like no point")
        wanted[path] = tuple(_checked(path, one, f"{where}: exclude") for one in values)
    return wanted


def matches(row: Flat, entry: Entry) -> bool:
    """Say whether every key of ``entry`` has (one of) its values in ``row``, or by default."""

    def same(key: str, wanted: tuple[Any, ...]) -> bool:
        have = _value(row, key)
        return any(_equal(have, one) for one in wanted)

    return all(same(key, wanted) for key, wanted in entry.items())


def _check_key(key: str, where: str) -> None:
    name, _, inner = key.partition(".")
    if name not in RunConfig.model_fields:
        near = did_you_mean(name, RunConfig.model_fields)
        raise ConfigError(f"{where}: exclude: {key}: unknown key{near}")
    known = list(GROUPS[name].model_fields) if name in GROUPS else []
    if key == PATH:
        raise ConfigError(
            f"{where}: exclude: {key}: a point has the knobs of its preset and not the name; "
            "exclude by a knob, e.g. horovod.cycle_time_ms: 0"
        )
    if name in GROUPS and not inner:
        raise ConfigError(f"{where}: exclude: {key}: name a key of it, e.g. {key}.{known[0]}")
    # A workload's own options are known to the workload only.
    if inner and name != "workload" and inner not in known:
        raise ConfigError(f"{where}: exclude: {key}: unknown key{did_you_mean(inner, known)}")


def _checked(key: str, value: Any, where: str) -> Any:
    """Return ``value`` as a point has it; ConfigError where it is no value of ``key``."""
    model = _model_of(key)
    if model is None:
        return value
    parent, _, name = key.rpartition(".")
    return getattr(validated(model, {name: value}, where, parent), name)


@lru_cache(maxsize=256)
def _model_of(key: str) -> type[BaseModel] | None:
    """Return a model of this one key, named as its last part; None for a workload's option."""
    parent, _, name = key.rpartition(".")
    field = (GROUPS[parent] if parent else RunConfig).model_fields.get(name)
    if field is None:
        return None
    fields: Any = {name: (field.annotation, field)}
    made: type[BaseModel] = create_model(name, __base__=Frozen, **fields)
    return made


def _value(row: Flat, key: str) -> Any:
    """Return the value of ``key`` in a point that is not checked yet."""
    name, _, option = key.partition(".")
    if key in row:
        value = row[key]
    elif name == "workload":
        whole = row.get(name, {})
        inner = flatten(whole) if isinstance(whole, Mapping) else {"name": whole}
        inner = {**row.get("workload.options", {}), **inner.get("options", {}), **inner}
        value = inner.get(option, _default(key))
    else:
        return _default(key)
    try:
        return _checked(key, value, "")
    except ConfigError:
        return value  # if the point stays, it is refused by its own name


def _equal(have: Any, wanted: Any) -> bool:
    if isinstance(have, Placement) and isinstance(wanted, Placement):
        # A mere count is every placement of so many ranks; devices per node are themselves only.
        return have == wanted or (not wanted.devices and have.count == wanted.count)
    if str(have) == str(wanted):
        return True
    if isinstance(have, bool) or isinstance(wanted, bool):
        return False
    try:
        return float(have) == float(wanted)  # options, which nobody here knows the type of
    except (TypeError, ValueError, OverflowError):
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
            default = field.get_default(call_default_factory=True, validated_data={})
            value = type(default) if isinstance(default, BaseModel) else default
    return value
