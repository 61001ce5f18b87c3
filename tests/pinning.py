"""Golden files of what must not change unnoticed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"
WRITE = "REGENERATE_GOLDEN"


def assert_pinned(name: str, data: Any, rule: str) -> None:
    """Fail with ``rule`` where ``data`` (plain JSON) is not what ``tests/golden/NAME`` holds.

    With REGENERATE_GOLDEN=1 the file is written, and the test fails all the same: a change is
    to be looked at, and a run that writes has shown nothing.
    """
    path = GOLDEN / name
    plain = json.loads(json.dumps(data))
    if os.environ.get(WRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        pytest.fail(
            f"{path} is written: look at what git says has changed, and run without {WRITE}"
        )
    if not path.is_file():
        pytest.fail(f"{path}: not there. {rule}")
    assert plain == json.loads(path.read_text(encoding="utf-8")), rule


def assert_within(part: Any, whole: Any) -> None:
    """Assert that all of ``part`` is in ``whole``, which may have more keys at every level."""
    if not isinstance(part, dict):
        assert part == whole
        return
    for key, value in part.items():
        assert_within(value, whole[key])
