"""Marks of a TensorFlow step: ``tf.timestamp`` inside the compiled step, on a CPU.

``tf.timestamp`` tells seconds since the epoch, to the microsecond, of the clock that the system may
set; ``time.perf_counter`` is the clock of all marks. Both run at one rate (what disciplines one
slews the other), so the distance between them, taken anew before every step, maps one to the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from harness.engines.api import BOUNDARIES

_TRIES = 3  # for one anchor: the narrowest is taken
_IN_GRAPH = len(BOUNDARIES) - 2  # all but the first two, which lie before the compiled step


class Marks:
    """Times inside a graph that is being traced, each after the one before it."""

    def __init__(self) -> None:
        self.stamps: list[Any] = []

    def put(self, after: Iterable[Any], *, possible: bool = True) -> None:
        """Take the time once all of ``after`` is computed; NaN where that is not possible."""
        if not possible:
            self.stamps.append(tf.constant(math.nan, tf.float64))
            return
        with tf.control_dependencies([*after, *self.stamps[-1:]]), tf.device("/CPU:0"):
            self.stamps.append(tf.timestamp())


@dataclass
class _Row:
    offset_s: float  # perf_counter − seconds since the epoch
    start_s: float
    data_s: float = np.nan
    stamps: Any = None  # (_IN_GRAPH,) seconds since the epoch, on the device
    end_s: float | None = None  # where nothing in the graph can be marked


class TfClock:
    """Collects one row of marks a step; reading them back is left to ``take``.

    On a GPU a time that is taken inside the compiled step says when work was queued, not when it
    was done, and TensorFlow refuses ``tf.timestamp`` where operations must be deterministic. Then
    the boundaries in there are NaN, and the step's end is when the host sees it: the device is
    waited for after every marked step.
    """

    def __init__(self, *, on_gpu: bool, deterministic: bool) -> None:
        self.in_graph = not on_gpu and not deterministic
        self._on_gpu = on_gpu
        self._rows: list[_Row] = []

    def start_step(self) -> None:
        """Begin a row: tie the clocks, then its first mark."""
        offset_s = min((_offset() for _ in range(_TRIES)), key=lambda found: found[1])[0]
        self._rows.append(_Row(offset_s, time.perf_counter()))

    def data(self) -> None:
        """Mark that the batch is there."""
        self._rows[-1].data_s = np.nan if self._on_gpu else time.perf_counter()

    def computed(self, stamps: Any) -> None:
        """Take what the compiled step marked; the device has been waited for."""
        row = self._rows[-1]
        row.stamps = stamps
        row.end_s = None if self.in_graph else time.perf_counter()

    def take(self) -> NDArray[np.float64]:
        """Return the marks as (steps, boundaries) seconds of the host's clock, and forget them."""
        rows, self._rows = self._rows, []
        return np.array([_seconds(row) for row in rows]).reshape(-1, len(BOUNDARIES))


def _offset() -> tuple[float, float]:
    """Return perf_counter − time since the epoch, and within how many seconds it was read."""
    before = time.perf_counter()
    epoch_s = time.time()
    after = time.perf_counter()
    return (before + after) / 2 - epoch_s, after - before


def _seconds(row: _Row) -> list[float]:
    if row.end_s is not None:
        return [row.start_s, row.data_s, *[np.nan] * (_IN_GRAPH - 1), row.end_s]
    within = np.asarray(row.stamps, dtype=np.float64) + row.offset_s
    return [row.start_s, row.data_s, *within.tolist()]
