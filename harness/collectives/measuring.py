"""The timed loop: libraries take turns, every iteration on fresh values.

Results are checked at every size in the first and in the last round, not in those between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.collectives import patterns
from harness.collectives.api import Control, Library, agree
from harness.collectives.definitions import bus_factor
from harness.collectives.patterns import Buffers
from harness.collectives.record import Row
from harness.collectives.sizes import size_text
from harness.errors import LaunchError

ITERATIONS = 100  # at most, unless the user says
MIN_ITERATIONS = 3  # however slow
WARMUP = 5  # rounds at most
BUDGET_S = 2.0  # of one library, collective and size; a fifth of it for the rounds of warm-up


@dataclass(frozen=True)
class Times:
    """Seconds of one library's collective of one size, (ranks, iterations)."""

    library: str
    collective: str
    bytes: int
    rank_s: NDArray[np.float64]


def measure(
    libraries: Sequence[Library],
    buffers: Buffers,
    control: Control,
    barrier: Callable[[], None],
    max_iterations: int = ITERATIONS,
) -> list[Times]:
    """Return every library's times on all ranks; AgreedError where a checked result is wrong.

    Checked, on all ranks, are the results of the first round (of the warm-up) and of the last.

    The libraries take turns, and another one begins each round, so that a drift of the machine and
    what a neighbour leaves behind meet all of them alike. Before each collective the buffers are
    filled anew and the ranks meet in a barrier, both outside the timed part. A rank's time is that
    of its own call, device synchronised at both ends. How many rounds there are follows from the
    warm-up's pace and a budget, and is the same on all ranks.
    """
    turns = _Turns(libraries, buffers, control, barrier)
    # The first round makes connections and touches memory; it is checked before time is spent.
    pace_s = turns.checked_round(0)
    more = int(np.clip(BUDGET_S / 5 * len(libraries) / pace_s.sum(), 0, WARMUP - 1))
    if more:
        pace_s = turns.agreed(np.stack([turns.round(i + 1)[0] for i in range(more)]).min(axis=0))
    fitting = int(BUDGET_S * len(libraries) / pace_s.sum())
    rounds = min(max(fitting, MIN_ITERATIONS), max_iterations)
    times = [turns.round(i)[0] for i in range(rounds - 1)]
    last_s, faults = turns.round(rounds - 1, check=True)
    agree(control, _first(faults))
    gathered = np.stack(control.gather(np.stack([*times, last_s])))  # (ranks, rounds, libraries)
    return [
        Times(library.name, buffers.collective, buffers.bytes, gathered[:, :, index])
        for index, library in enumerate(libraries)
    ]


class _Turns:
    """Rounds of one iteration of each library."""

    def __init__(
        self,
        libraries: Sequence[Library],
        buffers: Buffers,
        control: Control,
        barrier: Callable[[], None],
    ) -> None:
        self._libraries, self._buffers = libraries, buffers
        self._control, self._barrier = control, barrier

    def checked_round(self, number: int) -> NDArray[np.float64]:
        """Do a round, let every rank know of a wrong result, return the slowest rank's times."""
        times_s, faults = self.round(number, check=True)
        agree(self._control, _first(faults))
        return self.agreed(times_s)

    def agreed(self, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the slowest rank's times, the same on all ranks."""
        slowest: NDArray[np.float64] = np.stack(self._control.gather(times_s)).max(axis=0)
        return np.maximum(slowest, 1e-9)

    def round(
        self, number: int, check: bool = False
    ) -> tuple[NDArray[np.float64], list[LaunchError]]:
        """Return this rank's seconds of each library, in their order, and what was wrong."""
        times_s = np.zeros(len(self._libraries))
        faults = []
        for turn in range(len(self._libraries)):
            index = (number + turn) % len(self._libraries)
            library = self._libraries[index]
            patterns.fill(self._buffers)
            self._barrier()
            started = time.perf_counter()
            result = library.run(self._buffers)
            times_s[index] = time.perf_counter() - started
            found = patterns.fault(self._buffers, result) if check else None
            if found:
                faults.append(_wrong(library.name, self._buffers, found))
        return times_s, faults


def _wrong(library: str, buffers: Buffers, found: str) -> LaunchError:
    size = f"{size_text(buffers.bytes)} ({buffers.bytes:,} bytes)"
    return LaunchError(
        f"{library}'s {buffers.collective} of {size} is wrong: it {found} on rank {buffers.rank}; "
        "nothing was written"
    )


def _first(faults: Sequence[LaunchError]) -> LaunchError | None:
    return faults[0] if faults else None


def summarise(times: Times) -> Row:
    """Return latency and bandwidth; an iteration lasts as long as its slowest rank."""
    slowest_s = times.rank_s.max(axis=0)
    p50_s = float(np.median(slowest_s))
    algbw = times.bytes / p50_s if times.bytes else None
    factor = bus_factor(times.collective, len(times.rank_s)) if times.bytes else 0.0
    return Row(
        library=times.library,
        collective=times.collective,
        bytes=times.bytes,
        iterations=len(slowest_s),
        latency_p50_s=p50_s,
        latency_p99_s=float(np.percentile(slowest_s, 99)),
        latency_min_s=float(slowest_s.min()),
        latency_max_s=float(slowest_s.max()),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=None if algbw is None else algbw * factor,
    )
