"""Nested keys as paths and back: ``{a: {b: 1}}`` is ``{"a.b": 1}``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from harness.config.yaml_dialect import MAX_DEPTH
from harness.errors import ConfigError

Flat = dict[str, Any]
_LIST_VALUED = frozenset({"measure.instruments"})  # a list here is one value, not an axis


def flatten(data: Mapping[str, Any], prefix: str = "") -> Flat:
    """Return nested data by paths; a workload's ``options``, and what is empty, stay one value."""
    flat: Flat = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value and key != "options":
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nest(flat: Flat) -> dict[str, Any]:
    """Return what ``flatten`` flattened; ConfigError where a value has keys below it."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = _split(path)
        if len(parents) >= MAX_DEPTH:
            raise ConfigError(f"{path[:60]}...: nested more than {MAX_DEPTH} levels deep")
        target = nested
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):  # workload: name, beside workload.samples
                raise ConfigError(f"{path}: {parent} is a value and cannot have keys below it")
        if isinstance(value, Mapping) and not value:
            target.setdefault(last, {})  # an empty group says nothing; an empty value is refused
        else:
            target[last] = value
    return nested


@lru_cache(maxsize=1024)
def _split(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def is_axis(key: str, value: Any) -> bool:
    """Say whether ``value`` is a list of values of ``key``, and not one value that is a list."""
    if not isinstance(value, list):
        return False
    # A list of lists would be an axis over instrument sets.
    return key not in _LIST_VALUED or any(isinstance(inner, list) for inner in value)
