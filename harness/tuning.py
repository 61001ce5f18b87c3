"""Horovod's knobs as environment variables, and back.

Names and defaults: Horovod 0.28.1, ``horovod/common/common.h`` and ``operations.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config.models import HorovodTuning
from harness.errors import ConfigError

_MIB = 1024 * 1024
CYCLE_TIME = "HOROVOD_CYCLE_TIME"  # milliseconds
FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"  # bytes
ASYNC_COMPLETION = "HOROVOD_ENABLE_ASYNC_COMPLETION"


def to_environment(tuning: HorovodTuning) -> dict[str, str]:
    """Return the variables that put ``tuning`` in force; all of them, also at their defaults."""
    return {
        CYCLE_TIME: f"{tuning.cycle_time_ms:g}",
        FUSION_THRESHOLD: str(round(tuning.fusion_threshold_mb * _MIB)),
        ASYNC_COMPLETION: str(int(tuning.async_completion)),
    }


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``HorovodTuning`` that ``environ`` sets; ConfigError on a bad value."""
    found: dict[str, Any] = {}
    if CYCLE_TIME in environ:
        found["cycle_time_ms"] = _number(environ, CYCLE_TIME)
    if FUSION_THRESHOLD in environ:
        found["fusion_threshold_mb"] = _number(environ, FUSION_THRESHOLD) / _MIB
    if ASYNC_COMPLETION in environ:
        found["async_completion"] = bool(_number(environ, ASYNC_COMPLETION))
    return found


def _number(environ: Mapping[str, str], name: str) -> float:
    try:
        return float(environ[name])
    except ValueError:
        raise ConfigError(f"environment: {name}={environ[name]!r} is not a number") from None
