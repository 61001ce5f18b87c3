"""What the two ends of a link say to each other while it is measured; over any wire.

One end leads: it has its round trips answered, then its transfers, each answered by a word when all
of it has come. A transfer's time ends with that word, so it has one latency too many, which at the
sizes that count is nothing. Then the other end leads: the two directions are measured one after the
other, as the bandwidth of one alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harness.submit.preflight.plan import PING_BYTES, Limits

_END = 0
_GROWTH = 4
Clock = Callable[[], float]


class Wire(Protocol):
    """A connection to one other rank."""

    def put(self, count_bytes: int) -> None:
        """Send so many bytes; return when they need not be kept any more."""

    def get(self, count_bytes: int) -> None:
        """Receive so many bytes."""

    def say(self, word: int) -> None:
        """Send a number."""

    def hear(self) -> int:
        """Receive a number."""


@dataclass(frozen=True)
class Measured:
    """One direction, as its leading end saw it."""

    round_trip_s: tuple[float, ...]
    bytes: int
    transfer_s: tuple[float, ...]


def lead(wire: Wire, limits: Limits, clock: Clock = time.perf_counter) -> Measured:
    """Measure from this end to the other, which follows."""
    first_s = _round_trips(wire, limits.warmups, clock)
    pace_s = max(1e-9, sorted(first_s)[len(first_s) // 2])
    fitting = int(limits.latency_s / pace_s)
    trips_s = _round_trips(wire, max(limits.warmups, min(limits.round_trips, fitting)), clock)
    count_bytes, one_s = _size(wire, limits, clock)
    repeats = max(2, min(limits.transfers, int(limits.transfer_s / one_s)))
    transfers_s = tuple(_transfer(wire, count_bytes, clock) for _ in range(repeats))
    wire.say(_END)
    return Measured(trips_s, count_bytes, transfers_s)


def follow(wire: Wire) -> None:
    """Be the other end until the leading one has enough."""
    while (word := wire.hear()) != _END:
        if word < 0:
            for _ in range(-word):
                wire.get(PING_BYTES)
                wire.put(PING_BYTES)
        else:
            wire.put(PING_BYTES)  # ready
            wire.get(word)
            wire.put(PING_BYTES)  # all here


def _round_trips(wire: Wire, count: int, clock: Clock) -> tuple[float, ...]:
    wire.say(-count)
    found = []
    for _ in range(count):
        started = clock()
        wire.put(PING_BYTES)
        wire.get(PING_BYTES)
        found.append(clock() - started)
    return tuple(found)


def _size(wire: Wire, limits: Limits, clock: Clock) -> tuple[int, float]:
    """Return the size whose transfer lasts long enough, or the largest, and how long it took."""
    count_bytes = limits.smallest_bytes
    while True:
        one_s = max(1e-9, _transfer(wire, count_bytes, clock))
        if one_s >= limits.enough_s or count_bytes >= limits.largest_bytes:
            return count_bytes, one_s
        count_bytes = min(limits.largest_bytes, count_bytes * _GROWTH)


def _transfer(wire: Wire, count_bytes: int, clock: Clock) -> float:
    wire.say(count_bytes)
    wire.get(PING_BYTES)
    started = clock()
    wire.put(count_bytes)
    wire.get(PING_BYTES)
    return clock() - started
