"""Nested keys as paths and back: ``{a: {b: 1}}`` is ``{"a.b": 1}``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from harness.errors import ConfigError

Flat = dict[str, Any]


def flatten(data: Mapping[str, Any], prefix: str = "") -> Flat:
    """Return nested data by paths; a workload's ``options`` stay one value."""
    flat: Flat = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and key != "options":
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nest(flat: Flat) -> dict[str, Any]:
    """Return what ``flatten`` flattened; ConfigError where a value has keys below it."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = _split(path)
        target = nested
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):  # workload: name, beside workload.samples
                raise ConfigError(f"{path}: {parent} is a value and cannot have keys below it")
        target[last] = value
    return nested


@lru_cache(maxsize=1024)
def _split(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))
