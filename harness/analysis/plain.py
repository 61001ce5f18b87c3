"""Answers as plain data, for ``--json``."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Return frozen data types, mappings and tuples as what JSON has.

    Numbers that are not finite become null: JSON has none, and the reader of a script should not
    meet a word where a number was.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def json_text(value: Any) -> str:
    """Return ``plain`` data as indented JSON."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)
