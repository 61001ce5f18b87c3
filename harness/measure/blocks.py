"""Short blocks of timed steps in the order ABBA, so that a steady drift cancels."""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from harness.engines.api import Engine, Step
from harness.feed.shard import Feed

ORDER = (True, False, False, True)  # with what is compared?
SETTLE_STEPS = 3  # after a switch, not timed: pipelines and caches of the other kind drain
MIN_STEPS = 5
SHARE = 0.1  # of the window's steps, for one block


def block_steps(window_steps: int) -> int:
    """Return the timed steps of one block after a window of ``window_steps``."""
    return max(MIN_STEPS, math.ceil(SHARE * window_steps))


def timed_block(step: Step, feed: Feed, engine: Engine, steps: int, *, sync: bool = True) -> float:
    """Return this rank's seconds a step over one block, the device synchronised at both ends."""
    for _ in range(SETTLE_STEPS):
        step.run(feed.next(), sync=sync)
    step.device_synchronise()
    engine.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        step.run(feed.next(), sync=sync)
    step.device_synchronise()
    return (time.perf_counter() - started) / steps


def standard_error(values: NDArray[np.float64]) -> float:
    """Return the standard error of the mean of two values or more, in their unit."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))
