"""Marks on the training stream: CUDA events on a GPU, the monotonic clock on a CPU.

All marks come back as seconds of the host's ``time.perf_counter``. Events lie on the device's
clock, so at both ends of a block of steps an anchor ties the two clocks together: an event on the
idle device, between two readings of the host's clock. That costs time before the first step's
first mark and after the last step's last one, and none within.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from harness.engines.api import BOUNDARIES

_TRIES = 10  # for one anchor: the narrowest is taken


class Event(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self) -> None:
        """Put it behind what is queued on the current stream."""

    def synchronize(self) -> None:
        """Wait until the stream has come to it."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds, a float32, until ``end``."""


@dataclass(frozen=True)
class Anchor:
    """One moment on both clocks."""

    event: Event
    after_s: float  # the event is not earlier, on the host's clock,
    before_s: float  # and not later


class TorchClock:
    """Collects one row of marks a step; reading them back waits for the device once."""

    def __init__(
        self,
        device: torch.device,
        *,
        make_event: Callable[[], Event] | None = None,
        synchronise: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Keep to ``device``; the rest is for tests, which have no GPU."""
        self._device = device
        self._cuda = device.type == "cuda"
        self._make_event = make_event or _cuda_event
        self._synchronise = synchronise or self._cuda_synchronise
        self._clock = clock
        self._start: Anchor | None = None
        self._rows: list[list[Any]] = []
        self._free: list[Event] = []

    def expect(self, steps: int) -> None:
        """Make the events of so many steps now, so that no step makes any.

        An event is made on the device when it is first recorded.
        """
        if not self._cuda:
            return
        while len(self._free) < steps * len(BOUNDARIES):
            event = self._make_event()
            event.record()
            self._free.append(event)
        self._synchronise()

    def start_step(self) -> None:
        """Begin a row, with its first mark; before a block's first one, tie the clocks."""
        if self._cuda and not self._rows:
            self._start = self._anchor()
        self._rows.append([])
        self.mark()

    def mark(self) -> None:
        """Put the next boundary of ``BOUNDARIES`` here."""
        if self._cuda:
            event = self._free.pop() if self._free else self._make_event()
            event.record()
            self._rows[-1].append(event)
        else:
            self._rows[-1].append(self._clock())

    def skip(self) -> None:
        """Leave the next boundary out: there is no place where it could be marked."""
        self._rows[-1].append(None if self._cuda else math.nan)

    def take(self) -> NDArray[np.float64]:
        """Return the marks as (steps, boundaries) seconds of the host's clock, and forget them."""
        rows, self._rows = self._rows, []
        start, self._start = self._start, None
        if not rows:
            return np.zeros((0, len(BOUNDARIES)))
        if start is None:
            return np.array(rows)
        found = on_host(rows, start, self._anchor())
        self._free.extend(event for row in rows for event in row if event is not None)
        return found

    def _anchor(self) -> Anchor:
        """Return an event and the host's time of it, as narrowly as a few tries give it."""
        self._synchronise()
        return min(
            (self._try_anchor() for _ in range(_TRIES)),
            key=lambda found: found.before_s - found.after_s,
        )

    def _try_anchor(self) -> Anchor:
        event = self._make_event()
        after_s = self._clock()
        event.record()
        event.synchronize()
        return Anchor(event, after_s, self._clock())

    def _cuda_synchronise(self) -> None:
        torch.cuda.synchronize(self._device)


def on_host(
    rows: Sequence[Sequence[Event | None]], start: Anchor, end: Anchor
) -> NDArray[np.float64]:
    """Return the events of ``rows`` as (steps, boundaries) seconds of the host's clock.

    A boundary without an event is NaN; the first of a row has one. Between the anchors the host's
    clock is taken as linear in the device's.
    """
    # From each step to the next, and added up in float64: float32 milliseconds are exact enough
    # over one step, and 8 µs coarse over two minutes.
    firsts: list[Any] = [start.event, *(row[0] for row in rows), end.event]
    gaps_ms = [one.elapsed_time(other) for one, other in pairwise(firsts)]
    passed_s = np.cumsum(gaps_ms) / 1e3
    within_s = np.array([[_since(row[0], event) for event in row] for row in rows]) / 1e3
    rate, start_s = _line(start, end, float(passed_s[-1]))
    return start_s + rate * (passed_s[:-1, None] + within_s)


def _since(first: Any, event: Event | None) -> float:
    """Return milliseconds from ``first``."""
    return math.nan if event is None else float(first.elapsed_time(event))


def _line(start: Anchor, end: Anchor, device_s: float) -> tuple[float, float]:
    """Return host seconds per device second, and the host's time of ``start``.

    A short block's anchors cannot tell the clocks' rates apart: 10 µs of 1 ms would be 1 %, and
    real clocks part by 100 parts in a million. Where the same rate fits both anchors, it is taken.
    """
    start_s = (start.after_s + start.before_s) / 2
    end_s = (end.after_s + end.before_s) / 2
    shortest_s, longest_s = end.after_s - start.before_s, end.before_s - start.after_s
    if shortest_s <= device_s <= longest_s:
        return 1.0, start_s + (end_s - start_s - device_s) / 2
    return (end_s - start_s) / device_s, start_s


def _cuda_event() -> Event:
    make: Any = torch.cuda.Event  # untyped in torch
    made: Event = make(enable_timing=True)
    return made
