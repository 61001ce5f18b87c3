"""What communication costs besides waiting for it: steps with the all-reduce and without.

Blocks in the order ABBA (with, without, without, with), so that a steady drift cancels. Training is
put back afterwards as it was: without an all-reduce the ranks' weights go apart, and none of it may
reach what is measured later, or the gate.

    difference = mean over ranks and pairs of (step with − step without)
    interference = difference − exposed sync, a mean over ranks, too

Without an all-reduce each rank runs at its own pace. A fast rank then gains what it waits
otherwise, which is in its exposed sync; only means over the same ranks may be subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.engines.api import Engine, Step
from harness.errors import LaunchError
from harness.feed.shard import Feed
from harness.measure.blocks import ORDER, block_steps, standard_error, timed_block
from harness.record import Ablation

QUADS = 2


@dataclass(frozen=True)
class RankAblation:
    """One rank's seconds a step of every block, in the order they were run."""

    with_s: NDArray[np.float64]  # (2 · QUADS,)
    without_s: NDArray[np.float64]
    steps: int


def run_ablation(step: Step, feed: Feed, engine: Engine, window_steps: int) -> RankAblation:
    """Run the blocks on this rank, and put training back as it was.

    Raises LaunchError where the weights are not, bit for bit, what they were before.
    """
    before, checksum, position = step.snapshot(), step.checksum(), feed.position
    steps = block_steps(window_steps)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    try:
        for sync in ORDER * QUADS:
            seconds[sync].append(timed_block(step, feed, engine, steps, sync=sync))
    finally:
        step.restore(before)
        feed.seek(position)
    if step.checksum() != checksum:
        raise LaunchError("after the ablation the parameters are not what they were before it")
    return RankAblation(np.array(seconds[True]), np.array(seconds[False]), steps)


def summarise(ranks: Sequence[RankAblation], exposed_sync_s: float | None) -> Ablation:
    """Return the difference and what of it is no waiting: means over ranks, as exposed sync is."""
    with_s = np.stack([rank.with_s for rank in ranks]).mean(axis=0)
    without_s = np.stack([rank.without_s for rank in ranks]).mean(axis=0)
    pairs_s = with_s - without_s
    difference_s = float(pairs_s.mean())
    return Ablation(
        block_steps=ranks[0].steps,
        with_s=tuple(with_s.tolist()),
        without_s=tuple(without_s.tolist()),
        difference_s=difference_s,
        error_s=standard_error(pairs_s),
        exposed_sync_s=exposed_sync_s,
        interference_s=None if exposed_sync_s is None else difference_s - exposed_sync_s,
    )
