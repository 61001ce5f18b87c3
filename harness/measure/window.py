"""Warm-up and the window: the uninstrumented steps that throughput comes from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.config.models import MAX_STEPS, Measure
from harness.engines.api import Engine, Step

_PACE_STEPS = 3
_PACE_SHARE = 0.05  # of the window: how long the timed steps of the warm-up take at least,
_PACE_ENOUGH_S = 0.25  # or so long, however long the window is
_STEADY = 0.8  # of the pace before: what is faster than that is still warming up


@dataclass(frozen=True)
class WarmUp:
    """The steps before the window: compilation, caches and connections settle in them."""

    steps: int  # that were run, which may be more than were asked for
    wall_s: float
    step_s: float  # of the slowest rank, over the last, warm ones


@dataclass(frozen=True)
class RankWindow:
    """One rank's view of the window."""

    started_at_s: float  # seconds since the epoch, on this rank's clock
    wall_s: float  # device synchronised at both ends, and nowhere between
    step_s: NDArray[np.float64]  # (steps,); on a GPU the pace of queueing, not of computing
    losses: NDArray[np.float64]  # (steps,), local
    reduced_bytes: int


def warm_up(step: Step, next_batch: Callable[[], Any], engine: Engine, measure: Measure) -> WarmUp:
    """Run ``warmup_steps``, and on until the pace comes from warm steps over a time that counts.

    The window's length is planned from the pace, so one cold step must not make it. What is timed
    begins after half of the warm-up, and at the second step at the earliest, and has at least
    ``_PACE_STEPS``. Where that was little of ``window_s``, or steps are still becoming faster,
    twice as many follow, and so on; the last ones count. Every rank hears the slowest one's pace
    and decides by that alone, so all run the same number of steps.
    """
    engine.barrier()
    started = time.perf_counter()
    steps = max(1, measure.warmup_steps // 2)
    _run_for_s(step, next_batch, steps)
    count = max(_PACE_STEPS, measure.warmup_steps - steps)
    before_s = math.inf
    while True:
        pace_s = max(engine.gather(_run_for_s(step, next_batch, count) / count))
        steps += count
        steady = pace_s >= _STEADY * before_s and pace_s * count >= _PACE_SHARE * measure.window_s
        if steady or pace_s * count >= _PACE_ENOUGH_S or steps >= MAX_STEPS:
            return WarmUp(steps, time.perf_counter() - started, pace_s)
        before_s = pace_s
        count *= 2


def _run_for_s(step: Step, next_batch: Callable[[], Any], count: int) -> float:
    """Run ``count`` steps and return how long they took, the device synchronised at the end."""
    started = time.perf_counter()
    for _ in range(count):
        step.run(next_batch())
    step.device_synchronise()
    return time.perf_counter() - started


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
