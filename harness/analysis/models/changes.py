"""What ``--what-if`` takes: one thing to change, by its name, and a value where it has one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import ConfigError, did_you_mean

#: Name → what its value is, and an example.
WITH_VALUE = {
    "cycle_time_ms": "milliseconds, e.g. cycle_time_ms=0",
    "bandwidth": "a factor, e.g. bandwidth=2x",
    "latency": "a factor, e.g. latency=0.5x",
}
#: No cable, processor or cycle is so many times another.
_MOST, _LEAST = 1e6, 1e-6
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,3})?|[0-9]+\.")
PLAIN = ("no-stragglers", "no-sync", "graph")


@dataclass(frozen=True)
class Change:
    """One thing changed; ``value`` is milliseconds or a factor, None where there is none."""

    name: str
    value: float | None = None

    @property
    def text(self) -> str:
        """Return it as a user writes it."""
        if self.value is None:
            return self.name
        return f"{self.name}={self.value:g}{'' if self.name == 'cycle_time_ms' else 'x'}"


def parse_change(text: str) -> Change:
    """Return the change that ``text`` names; ConfigError says what there is."""
    name, equals, value = text.strip().partition("=")
    if name in PLAIN:
        if equals:
            raise ConfigError(f"--what-if {name} takes no value, got '{value}'")
        return Change(name)
    if name not in WITH_VALUE:
        there = ", ".join([*(f"{one}=…" for one in WITH_VALUE), *PLAIN])
        near = did_you_mean(name, [*WITH_VALUE, *PLAIN])
        raise ConfigError(f"--what-if knows no '{name}'{near}; there are: {there}")
    number = value if name == "cycle_time_ms" else value.removesuffix("x")
    found = float(number) if _NUMBER.fullmatch(number) else -1.0
    least = _LEAST if name == "bandwidth" else 0.0
    if not least <= found <= _MOST:
        raise ConfigError(
            f"--what-if {name} takes {WITH_VALUE[name]} (from {least:g} to {_MOST:,.0f}), "
            f"got '{value}'"
        )
    return Change(name, found)
