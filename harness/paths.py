"""Where things go that are not results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_data_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Return ``${HVDSCALE_DATA_DIR:-${XDG_CACHE_HOME:-~/.cache}/hvdscale/data}``, absolute.

    On a cluster it must be a file system that every node sees.
    """
    if env.get("HVDSCALE_DATA_DIR"):
        return Path(env["HVDSCALE_DATA_DIR"]).absolute()
    cache = env.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path(env.get("HOME", "/nonexistent")) / ".cache"
    return base.absolute() / "hvdscale" / "data"
