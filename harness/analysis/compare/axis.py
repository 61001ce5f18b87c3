"""``key=value`` of the command line: which key of a config, and which of its values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.analysis.compare.items import Item, Items
from harness.errors import AnalysisError, ConfigError, did_you_mean

_SHOWN = 8


@dataclass(frozen=True)
class Choice:
    """One value of one key of a config, e.g. ``backend`` and ``mpi``."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    def has(self, item: Item) -> bool:
        """Say whether a point has the value."""
        return item.facts.get(self.key) == self.value


def choices(items: Items, a: str, b: str) -> tuple[Choice, Choice]:
    """Return both sides of a comparison along one axis.

    ``a`` and ``b`` are ``key=value``, the value as YAML. The last part of a key is enough where it
    is the only one (``precision``). Raises ConfigError where they are no two values of one key, and
    AnalysisError where no point has the key or a value; the present ones are named.
    """
    (key, value), (other_key, other_value) = _split(a), _split(b)
    first, second = _key(items, key), _key(items, other_key)
    if first != second:
        raise ConfigError(
            f"compare takes two values of one key; '{a}' and '{b}' are of two, {first} and {second}"
        )
    found = tuple(Choice(first, _value(items, first, text)) for text in (value, other_value))
    if found[0] == found[1]:
        raise ConfigError(f"compare takes two values of {first}; '{a}' and '{b}' are the same")
    return found[0], found[1]


def axes(items: Items) -> dict[str, tuple[str, ...]]:
    """Return every key that has several values in a sweep, with them."""
    keys = {key for item in items.points for key in item.facts}
    found = {key: items.values(key) for key in sorted(keys)}
    return {key: values for key, values in found.items() if len(values) > 1}


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigError(f"'{text}' is no key=value, e.g. backend=mpi or horovod.cycle_time_ms=5")
    return key.strip(), value.strip()


def _key(items: Items, key: str) -> str:
    keys = {name for item in items.points for name in item.facts}
    if key in keys:
        return key
    # ``workload.hidden`` of a sweep's file is ``workload.options.hidden`` of a config.
    named = key.replace("workload.", "workload.options.", 1)
    if named in keys:
        return named
    ending = sorted(name for name in keys if name.endswith(f".{key}"))
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise ConfigError(f"'{key}' may be {_listed(ending)}; write which")
    last_parts = {name.rpartition(".")[2] for name in keys}
    near = did_you_mean(key, keys | last_parts)
    raise AnalysisError(
        f"{items.results.name}: no point has the key '{key}'{near}; {_varying(items)}"
    )


def _value(items: Items, key: str, text: str) -> str:
    there = items.values(key)
    wanted = _as_text(text, key)
    if wanted in there:
        return wanted
    raise AnalysisError(
        f"{items.results.name}: no point has {key}={text}{did_you_mean(wanted, there)}; "
        f"measured: {_listed(there)}"
    )


def _as_text(text: str, key: str) -> str:
    """Return a value, given as YAML, as a fact has it: ``1.0`` is ``1`` and ``true`` ``True``."""
    import yaml

    if key == "placement":
        return _placement(text)
    try:
        value: Any = yaml.safe_load(text)
    # Of a date that there is not, of an integer of thousands of digits, of thousands of brackets.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{key}={text}: not a YAML value: {error}") from None
    if isinstance(value, list):
        return " + ".join(map(str, value)) or "none"
    if isinstance(value, str | bool):
        return _number(value) if isinstance(value, str) else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(text: str) -> str:
    """Return ``1e3``, which YAML takes for a word, as the number it is."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def _placement(text: str) -> str:
    """Return ``2x4`` as devices of each node, ``4+4``."""
    from harness.config.placement import Placement

    try:
        found = Placement.parse(text)
    except ValueError as error:
        raise ConfigError(f"placement={text}: {error}") from None
    return "+".join(map(str, found.devices)) or str(found.count)


def _varying(items: Items) -> str:
    found = [f"{key} ({_listed(values)})" for key, values in axes(items).items()]
    if not found:
        return "all of its points have the same config, so there is no axis to compare along"
    return f"keys with several values: {_listed(found)}"


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
