"""The ranks' arrival times on one clock: a check of the wait that is measured without one.

Every rank marks when its last local gradient is ready, on its host's ``time.perf_counter``. Ranks
that share a kernel share that clock (CLOCK_MONOTONIC): their offset is 0, and without error. The
clock of any other host is compared with that of rank 0 before and after the marked steps
(``exchange``, by the least round trip of many, see ``measure/pings.py``), and its offset taken to
change linearly between the two. With linear drift the error between two comparisons is at most the
larger one of theirs; a clock that is stepped or steered meanwhile is not seen.

Wait by clocks counts from a rank's own arrival to the last rank's. Wait by exposed sync
(``measure/phases.py``) counts what a rank waits longer than the one that waits least. They agree
where the reduction starts when the last rank has come. They differ where transfer overlaps: the
gradients that the others already have are reduced while the last rank still computes, in part also
behind the backward pass of an early rank, and a rank that comes late to an all-reduce in several
pieces delays only those that it has not handed over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.engines.api import World
from harness.errors import LaunchError
from harness.measure import pings
from harness.record import ClockCheck

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")

ONE_CLOCK = "all ranks read one host's clock"
ROUND_TRIPS = f"least round trip of {pings.PINGS} before and after, linear drift"


class Gathers(Protocol):
    """The part of an engine that is needed here."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on every rank."""


@dataclass(frozen=True)
class Host:
    """Whose clock a rank reads."""

    name: str
    clock: str  # equal where the clock is the same one, whatever the names are


@dataclass(frozen=True)
class Exchange:
    """One comparison of this rank's clock with rank 0's."""

    at_s: float  # on this rank's clock
    offset_s: float  # this rank's clock − rank 0's; 0 by definition where they are one
    error_s: float  # half of the least round trip; 0 where they are one
    host: Host


@dataclass(frozen=True)
class RankClock:
    """One rank's arrivals, with its clock compared on both sides of them."""

    before: Exchange
    after: Exchange
    ready_s: NDArray[np.float64]  # (steps,) on its own clock; NaN where the engine cannot mark it

    @property
    def drift(self) -> float:
        """Return the change of the offset, seconds a second of this rank's clock."""
        span_s = self.after.at_s - self.before.at_s
        return (self.after.offset_s - self.before.offset_s) / span_s if span_s > 0 else 0.0

    @property
    def offset_s(self) -> float:
        """Return the offset in the middle between the two comparisons."""
        return (self.before.offset_s + self.after.offset_s) / 2

    @property
    def error_s(self) -> float:
        """Return the larger error of the two; with linear drift none between them is larger."""
        return max(self.before.error_s, self.after.error_s)

    def arrivals_s(self) -> NDArray[np.float64]:
        """Return ``ready_s`` on rank 0's clock."""
        passed_s = self.ready_s - self.before.at_s
        return self.ready_s - (self.before.offset_s + self.drift * passed_s)


def this_host() -> Host:
    """Return whose clock this process reads.

    The kernel's boot id and the time namespace say it: containers and network namespaces of one
    kernel have names of their own and one clock, a time namespace may have a clock of its own.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError as error:
        raise LaunchError(
            f"clocks: {_BOOT_ID} cannot be read ({error.strerror or error}), so it is not known "
            "which ranks share a clock; leave clocks out of measure.instruments"
        ) from None
    try:
        space = os.readlink(_TIME_NAMESPACE)
    except FileNotFoundError:  # a kernel without time namespaces has one clock
        space = ""
    return Host(gethostname(), f"{boot} {space}".strip())


def exchange(
    engine: Gathers,
    world: World,
    *,
    clock: pings.Clock = time.perf_counter,
    host: Host | None = None,
) -> Exchange:
    """Compare this rank's ``clock`` with that of rank 0; every rank calls it.

    ``clock`` and ``host`` are for tests, whose hosts are namespaces with one clock. Raises
    LaunchError where another host's first rank does not reach rank 0.
    """
    host = host or this_host()
    at_s = clock()
    hosts: list[Host] = engine.gather(host)
    speakers = {each.clock: rank for rank, each in reversed(list(enumerate(hosts)))}
    callers = {rank: hosts[rank].name for rank in sorted(speakers.values()) if rank != 0}
    if not callers:
        return Exchange(at_s, 0.0, 0.0, host)
    readings = _readings(engine, world, callers, clock, host.name)
    found = readings[speakers[host.clock]]
    if found is None:  # it is rank 0's own clock
        return Exchange(at_s, 0.0, 0.0, host)
    return Exchange(found.at_s, found.offset_s, found.error_s, host)


def _readings(
    engine: Gathers, world: World, callers: Mapping[int, str], clock: pings.Clock, name: str
) -> list[pings.Reading | None]:
    """Let the first rank of every other clock call rank 0; return what each rank found."""
    found = door = None
    with ExitStack() as stack:  # the listener is gone before anything else happens
        if world.rank == 0:
            listener = stack.enter_context(pings.listen())
            door = pings.door_of(listener, name)
        door = engine.gather(door)[0]
        if world.rank == 0:
            pings.answer(listener, door, callers, clock)
        elif world.rank in callers:
            found = pings.least(pings.ask(door, world.rank, clock))
    return engine.gather(found)


def summarise(ranks: Sequence[RankClock]) -> ClockCheck | None:
    """Return skew and wait on rank 0's clock; None where an engine could not mark the arrivals.

    ``resolved`` is False where the skew is below what the comparison of clocks may be wrong by. An
    arrival is known as well as its host's clock, and rank 0's host is known exactly, so between two
    hosts that is ``error_s``; with more of them the two worst may be wrong by the sum of theirs.
    """
    arrivals_s = np.stack([rank.arrivals_s() for rank in ranks])  # (ranks, steps)
    if np.isnan(arrivals_s).any():
        return None
    last_s = arrivals_s.max(axis=0)
    skew_s = float((last_s - arrivals_s.min(axis=0)).mean())
    clocks = {rank.before.host.clock: rank.error_s for rank in ranks}
    *_, second_s, worst_s = sorted([0.0, *clocks.values()])
    return ClockCheck(
        method=ONE_CLOCK if len(clocks) == 1 else ROUND_TRIPS,
        offsets_s=tuple(rank.offset_s for rank in ranks),
        error_s=worst_s,
        drift=max((rank.drift for rank in ranks), key=abs),
        skew_s=skew_s,
        wait_s=float((last_s - arrivals_s).mean()),
        resolved=skew_s >= second_s + worst_s,
    )
