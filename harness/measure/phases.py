"""Where a step's time goes: marked steps after the window, overlap left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.engines.api import BOUNDARIES, PHASES, Engine, Step
from harness.record import Phases

#: Fewer marked steps than this say little; more than half a window's would take too long.
MIN_STEPS = 5


@dataclass(frozen=True)
class Marked:
    """One rank's marked steps."""

    columns: NDArray[np.float64]  # (steps, 1 + len(PHASES)) seconds: the whole step, then PHASES
    ready_s: NDArray[np.float64]  # (steps,) last local gradient ready, on this host's clock


def marked_steps(window_steps: int) -> int:
    """Return how many steps are marked after a window of ``window_steps``."""
    return max(MIN_STEPS, window_steps // 2)


def run_marked(step: Step, next_batch: Callable[[], Any], engine: Engine, steps: int) -> Marked:
    """Return this rank's phases.

    The whole step is the time from one step's start to the next one's, so that what lies between
    steps is in it; the last step of the block ends with its own update.
    """
    step.expect_marks(steps)
    engine.barrier()
    step.device_synchronise()
    for _ in range(steps):
        step.run_marked(next_batch)
    step.device_synchronise()
    marks = step.take_marks()
    phases = np.diff(marks, axis=1)
    starts = np.append(marks[1:, 0], marks[-1, -1])
    columns = np.column_stack([starts - marks[:, 0], phases])
    return Marked(columns, marks[:, BOUNDARIES.index("backward")])


def split_sync(exposed_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Split exposed sync, (ranks, steps), into transfer (steps,) and wait (ranks, steps).

    Transfer is the least over the ranks: the last rank to arrive waits for nobody. It needs no
    common clock.
    """
    transfer_s: NDArray[np.float64] = exposed_s.min(axis=0)
    return transfer_s, exposed_s - transfer_s


def summarise(ranks: Sequence[NDArray[np.float64]], *, synchronised: bool) -> Phases:
    """Return means over ranks and steps.

    ``sum_s`` is what the phases account for; the rest of a step lies between two steps.
    """
    stacked = np.stack(ranks)  # (ranks, steps, 1 + phases)
    step_s = float(stacked[:, :, 0].mean())
    means = dict(zip(PHASES, stacked[:, :, 1:].mean(axis=(0, 1)).tolist(), strict=True))
    exposed_s = stacked[:, :, 1 + PHASES.index("exposed_sync_s")]
    if not synchronised:
        exposed_s = np.full_like(exposed_s, np.nan)
    transfer_s, wait_s = split_sync(exposed_s)
    return Phases(
        steps=stacked.shape[1],
        step_s=step_s,
        sum_s=_or_none(sum(means.values())),
        data_s=_or_none(means["data_s"]),
        forward_s=_or_none(means["forward_s"]),
        backward_s=_or_none(means["backward_s"]),
        exposed_sync_s=_or_none(exposed_s.mean()),
        transfer_s=_or_none(transfer_s.mean()),
        wait_s=_or_none(wait_s.mean()),
        update_s=_or_none(means["update_s"]),
    )


def _or_none(mean: float) -> float | None:
    """Return what could be marked; NaN stands for what could not."""
    return None if np.isnan(mean) else float(mean)
