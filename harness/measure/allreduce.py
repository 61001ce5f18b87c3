"""The isolated all-reduce: a gradient's bytes reduced with nothing else running."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.engines.api import Engine, World
from harness.errors import LaunchError
from harness.record import AllReduce

WARMUP = 5
ITERATIONS = 30
BUDGET_S = 2.0  # a slow network gets fewer iterations, but never under MIN_ITERATIONS
MIN_ITERATIONS = 5


def run_isolated(engine: Engine, world: World, count_bytes: int) -> NDArray[np.float64]:
    """Return this rank's time of each all-reduce, (iterations,) seconds; the sum is checked.

    The buffer is filled anew before each one, outside the timed part: sums in place would run
    over after a few dozen, and zeros are no fair data.
    """
    buffer = engine.make_buffer(count_bytes - count_bytes % 4)
    pace_s = max(engine.gather(max(_timed(engine, buffer, world) for _ in range(WARMUP))))
    iterations = int(np.clip(BUDGET_S / max(pace_s, 1e-9), MIN_ITERATIONS, ITERATIONS))
    times = np.array([_timed(engine, buffer, world) for _ in range(iterations)])
    _check_sum(engine.to_host(buffer), world)
    return times


def check_sum(engine: Engine, world: World, count_bytes: int = 4096) -> None:
    """Do one short all-reduce and raise LaunchError where its sum is wrong."""
    buffer = engine.make_buffer(count_bytes)
    _timed(engine, buffer, world)
    _check_sum(engine.to_host(buffer), world)


def _timed(engine: Engine, buffer: object, world: World) -> float:
    engine.fill(buffer, float(world.rank + 1))
    started = time.perf_counter()
    engine.allreduce(buffer)
    return time.perf_counter() - started


def _check_sum(values: NDArray[np.float32], world: World) -> None:
    wanted = world.size * (world.size + 1) / 2
    if not np.all(values == wanted):
        wrong = values[values != wanted]
        raise LaunchError(
            f"an all-reduce of {values.nbytes} bytes gave {wrong[0]} instead of {wanted:g} in "
            f"{len(wrong)} places on rank {world.rank}"
        )


def summarise(ranks: Sequence[NDArray[np.float64]], count_bytes: int) -> AllReduce:
    """Return latency and bandwidth; an all-reduce lasts as long as its slowest rank's."""
    slowest = np.stack(ranks).max(axis=0)
    p50_s = float(np.median(slowest))
    algbw = count_bytes / p50_s
    size = len(ranks)
    return AllReduce(
        bytes=count_bytes,
        iterations=len(slowest),
        latency_p50_s=p50_s,
        latency_p99_s=float(np.percentile(slowest, 99)),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * 2 * (size - 1) / size,
    )
