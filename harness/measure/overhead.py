"""What something that runs beside the ranks costs them: steps while it runs, and while it rests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.engines.api import Engine, Step
from harness.feed.shard import Feed
from harness.measure.blocks import ORDER, block_steps, standard_error, timed_block

QUADS = 2


class Pausable(Protocol):
    """What runs beside the ranks of a node."""

    def pause(self) -> None:
        """Stop it; what it has is kept."""

    def resume(self) -> None:
        """Let it go on."""


@dataclass(frozen=True)
class RankToggled:
    """One rank's seconds a step of every block, in the order they were run."""

    on_s: NDArray[np.float64]  # (2 · QUADS,)
    off_s: NDArray[np.float64]


def run_toggled(
    step: Step, feed: Feed, engine: Engine, window_steps: int, beside: Pausable | None
) -> RankToggled:
    """Run ABBA blocks with ``beside`` running and resting; None on ranks that do not hold it."""
    steps = block_steps(window_steps)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for on in ORDER * QUADS:
        if beside is not None:
            (beside.resume if on else beside.pause)()
        seconds[on].append(timed_block(step, feed, engine, steps))
    return RankToggled(np.array(seconds[True]), np.array(seconds[False]))


def cost(ranks: Sequence[RankToggled]) -> tuple[float, float]:
    """Return step with / step without − 1 and its standard error, from the scatter of blocks.

    A block lasts as long as its longest rank's. The error is that of a ratio of two means.
    """
    on_s = np.stack([rank.on_s for rank in ranks]).max(axis=0)
    off_s = np.stack([rank.off_s for rank in ranks]).max(axis=0)
    ratio = float(on_s.mean() / off_s.mean())
    scatter = [standard_error(blocks_s) / float(blocks_s.mean()) for blocks_s in (on_s, off_s)]
    return ratio - 1.0, ratio * math.hypot(*scatter)
