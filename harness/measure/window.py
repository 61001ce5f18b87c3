"""Warm-up and the window: the uninstrumented steps that throughput comes from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.config.models import Measure
from harness.engines.api import Engine, Step


@dataclass(frozen=True)
class WarmUp:
    """The steps before the window: compilation, caches and connections settle in them."""

    steps: int
    wall_s: float
    step_s: float  # of the slowest rank, over the second half


@dataclass(frozen=True)
class RankWindow:
    """One rank's view of the window."""

    started_at_s: float  # seconds since the epoch, on this rank's clock
    wall_s: float  # device synchronised at both ends, and nowhere between
    step_s: NDArray[np.float64]  # (steps,); on a GPU the pace of queueing, not of computing
    losses: NDArray[np.float64]  # (steps,), local
    reduced_bytes: int


def warm_up(step: Step, next_batch: Callable[[], Any], engine: Engine, measure: Measure) -> WarmUp:
    """Run the warm-up; at least one step, since the window's length is planned from its pace."""
    steps = max(1, measure.warmup_steps)
    early = steps // 2
    engine.barrier()
    started = time.perf_counter()
    for _ in range(early):
        step.run(next_batch())
    step.device_synchronise()
    half = time.perf_counter()
    for _ in range(steps - early):
        step.run(next_batch())
    step.device_synchronise()
    ended = time.perf_counter()
    pace_s = max(engine.gather((ended - half) / (steps - early)))
    return WarmUp(steps, ended - started, pace_s)


def planned_steps(measure: Measure, step_s: float) -> int:
    """Return the steps of a window of ``window_s`` at that pace, never under ``min_steps``."""
    return max(measure.min_steps, math.ceil(measure.window_s / max(step_s, 1e-9)))


def run_window(step: Step, next_batch: Callable[[], Any], engine: Engine, steps: int) -> RankWindow:
    """Run the timed steps; all ranks must be given the same ``steps``."""
    clock = time.perf_counter
    stamps = np.empty(steps + 1)
    losses: list[Any] = []
    before = step.reduced()
    engine.barrier()
    step.device_synchronise()
    started_at_s = time.time()
    stamps[0] = clock()
    for index in range(1, steps + 1):
        losses.append(step.run(next_batch()))
        stamps[index] = clock()
    step.device_synchronise()
    ended = clock()
    after = step.reduced()
    return RankWindow(
        started_at_s=started_at_s,
        wall_s=ended - stamps[0],
        step_s=np.diff(stamps),
        losses=step.losses(losses),
        reduced_bytes=after.bytes - before.bytes,
    )
