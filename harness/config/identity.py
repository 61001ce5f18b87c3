"""The name of a measurement: a hash of what changes it, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from harness.config.models import RunConfig

ID_CHARS = 16  # 64 bits: a collision among 100,000 runs has a chance of about 3e-10


def canonical(config: RunConfig) -> dict[str, Any]:
    """Return ``config`` as plain data without defaults, so that a new field changes no old id."""
    return config.model_dump(mode="json", exclude_defaults=True)


def run_id(config: RunConfig, repeat: int) -> str:
    """Return the id of repeat number ``repeat`` (from 0) of a point, as hexadecimal digits."""
    text = json.dumps(
        {"config": canonical(config), "repeat": repeat}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARS]


def point_id(config: RunConfig) -> str:
    """Return the id of a point, the same for all its repeats."""
    text = json.dumps(canonical(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARS]
