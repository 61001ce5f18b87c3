"""Makes a clock wrong, and ranks fail: Python imports this by itself on a PYTHONPATH with it.

``HVDSCALE_SOAK_CLOCK_S`` is by how much the wall clock is wrong; the ranks' faults are those of
``tests/faults/inject``. The clock that measures, the monotonic one, is left alone.
"""

from __future__ import annotations

import datetime as module
import importlib.util
import os
import time
from pathlib import Path

OFFSET_S = float(os.environ.get("HVDSCALE_SOAK_CLOCK_S") or 0)
RANKS = Path(__file__).parents[2] / "faults" / "inject" / "sitecustomize.py"


class _Kind(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _right)


class _Wrong(module.datetime, metaclass=_Kind):
    @classmethod
    def now(cls, tz: module.tzinfo | None = None) -> module.datetime:  # type: ignore[override]
        return _right.now(tz) + module.timedelta(seconds=OFFSET_S)


_right, _time = module.datetime, time.time
if OFFSET_S:
    module.datetime = _Wrong  # type: ignore[misc]
    time.time = lambda: _time() + OFFSET_S
if os.environ.get("HVDSCALE_TEST_FAULTS"):
    _spec = importlib.util.spec_from_file_location("rank_faults", RANKS)
    assert _spec is not None
    assert _spec.loader is not None
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
