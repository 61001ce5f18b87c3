"""Horovod's timeline of a known number of steps, in a launch of its own.

The launch has no window, and its pace is no source for anything: with HOROVOD_TIMELINE=DYNAMIC
rank 0 waits for its GPU on the CPU, completes nothing asynchronously and keeps a core busy with the
thread that writes (``TimelineWriter::WriterLoop`` yields and never sleeps), and all ranks negotiate
with bit vectors of twice the length, whether a file is being written or not. Compared here are
steps that are written down with steps that are not; the rest of that cost is in both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.engines.api import Engine, Step, World
from harness.errors import LaunchError
from harness.feed.shard import Feed
from harness.measure.blocks import SETTLE_STEPS, standard_error, timed_block
from harness.record import Timeline
from harness.timeline import PhaseTime, Summary, read_summary


@dataclass(frozen=True)
class RankTimeline:
    """One rank's seconds a step."""

    plain_s: tuple[float, float]  # of the blocks before and after the timeline
    timeline_s: float  # while it was written


def run_timeline(
    step: Step, feed: Feed, engine: Engine, world: World, steps: int, path: Path
) -> RankTimeline:
    """Let rank 0 write the timeline of exactly ``steps`` steps of all ranks to ``path``.

    Plain blocks of as many steps come before and after, so that a steady drift cancels; one more
    comes first and is not used, because the first steps of a launch are slow.
    """
    timed_block(step, feed, engine, steps)
    before_s = timed_block(step, feed, engine, steps)
    written_s = _written_block(step, feed, engine, world, steps, path)
    after_s = timed_block(step, feed, engine, steps)
    return RankTimeline(plain_s=(before_s, after_s), timeline_s=written_s)


def _written_block(
    step: Step, feed: Feed, engine: Engine, world: World, steps: int, path: Path
) -> float:
    for _ in range(SETTLE_STEPS):
        step.run(feed.next())
    step.device_synchronise()
    # No rank may ask for a gradient of the block before rank 0's file is open, nor of the steps
    # after it before the file is closed: rank 0 writes down the requests of all of them.
    engine.barrier()
    if world.rank == 0:
        engine.start_timeline(path)
    engine.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        step.run(feed.next())
    step.device_synchronise()
    seconds = time.perf_counter() - started
    if world.rank == 0:
        engine.stop_timeline()
    engine.barrier()
    return seconds / steps


def summarise(
    ranks: Sequence[RankTimeline], path: Path, steps: int
) -> tuple[Timeline, float, float]:
    """Read rank 0's file; return its account, what writing it costs, and that one's error.

    The cost is step while it was written / step while not − 1, of the longest rank; its standard
    error is by how much the two blocks without it differ, one before and one after. Raises
    LaunchError where the file is not whole, or its tensors were not reduced once in each step.
    """
    found = read_summary(path, steps)
    if not found.complete:
        raise LaunchError(
            f"{path}: the timeline is cut off, though it was stopped; is the disk full?"
        )
    if found.steps_found != steps or found.uneven:
        raise LaunchError(
            f"{path}: most tensors are reduced {found.steps_found} times in {steps} steps, and "
            f"{found.uneven} more or less often: each should be, once a step"
        )
    plain_s = np.array([rank.plain_s for rank in ranks]).max(axis=0)
    mean_s = float(plain_s.mean())
    ratio = max(rank.timeline_s for rank in ranks) / mean_s
    error = ratio * standard_error(plain_s) / mean_s
    return _timeline(found, path, ratio * mean_s, mean_s), ratio - 1.0, error


def _timeline(found: Summary, path: Path, step_s: float, plain_step_s: float) -> Timeline:
    return Timeline(
        steps=found.steps,
        step_s=step_s,
        plain_step_s=plain_step_s,
        negotiation_s=_union(found.negotiation),
        queue_s=_union(found.queue),
        copy_in_s=_union(found.copy_in),
        allreduce_s=_union(found.allreduce),
        copy_out_s=_union(found.copy_out),
        cycles=found.cycles,
        tensors=found.tensors,
        allreduces=found.allreduces,
        tensors_fused=found.tensors_fused,
        file=path.name,
    )


def _union(phase: PhaseTime | None) -> float | None:
    return None if phase is None else phase.union_s
