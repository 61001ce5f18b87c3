"""The flags of ``hvdscale advise``. Each mistake is one line."""

from __future__ import annotations

import math
import re

from harness.analysis.advise.types import Goal, Target
from harness.errors import ConfigError

_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_TIME = re.compile(
    rf"(?:({_NUMBER})d)?(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?", re.ASCII
)
_UNITS_S = (86400.0, 3600.0, 60.0, 1.0)


def parse_goal(min_efficiency: float | None, deadline: str | None, target: str | None) -> Goal:
    """Return what the flags ask for; ConfigError says which of them is wrong, and what it takes."""
    if min_efficiency is not None and not 0 < min_efficiency <= 1:
        raise ConfigError(
            f"--min-efficiency: {min_efficiency:g} is not above 0 and at most 1, e.g. 0.8"
        )
    return Goal(
        min_efficiency=min_efficiency,
        deadline_s=None if deadline is None else parse_deadline(deadline),
        target=None if target is None else parse_target(target),
    )


def parse_deadline(text: str) -> float:
    """Return the seconds of ``90s``, ``45m``, ``2h`` or ``1d12h``."""
    found = _TIME.fullmatch(text.strip().replace(" ", "").lower())
    parts = found.groups() if found else ()
    if not any(parts):
        raise ConfigError(f"--deadline: '{text}' is no time; write e.g. 90s, 45m, 2h or 1d12h")
    seconds = sum(
        float(part) * unit for part, unit in zip(parts, _UNITS_S, strict=True) if part is not None
    )
    if not seconds > 0:
        raise ConfigError(f"--deadline: '{text}' leaves no time; write e.g. 90s, 45m, 2h or 1d12h")
    return seconds


def parse_target(text: str) -> Target:
    """Return ``mse=1e-3`` as a target."""
    metric, equals, value = (part.strip() for part in text.partition("="))
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (metric and equals and math.isfinite(number)):
        raise ConfigError(f"--target: '{text}' is no METRIC=VALUE, e.g. mse=1e-3 or accuracy=0.95")
    return Target(metric, number)
