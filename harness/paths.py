"""Where things go that are not results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_data_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Return ``${HVDSCALE_DATA_DIR:-${XDG_CACHE_HOME:-~/.cache}/hvdscale/data}``, absolute.

    On a cluster it must be a file system that every node sees.
    """
    return _place("HVDSCALE_DATA_DIR", "data", env)


def default_wheel_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Return ``${HVDSCALE_WHEEL_DIR:-${XDG_CACHE_HOME:-~/.cache}/hvdscale/wheels}``, absolute."""
    return _place("HVDSCALE_WHEEL_DIR", "wheels", env)


def _place(variable: str, name: str, env: Mapping[str, str]) -> Path:
    if env.get(variable):
        return Path(env[variable]).absolute()
    cache = env.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path(env.get("HOME", "/nonexistent")) / ".cache"
    return base.absolute() / "hvdscale" / name
