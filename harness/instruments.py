"""What is measured of a launch beside its window: which instruments, in which order, to what.

Rank by rank (``run``), then on rank 0 over all of them (``summarise``). What few launches ask for
is imported where it is asked for: the start of a rank is part of every launch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.config.models import RunConfig
from harness.engines.api import Engine, Step, World
from harness.feed.shard import Feed
from harness.measure import ablation, allreduce, overhead, phases
from harness.measure.blocks import standard_error
from harness.measure.window import RankWindow
from harness.record import Window
from workloads.api import Samples

if TYPE_CHECKING:
    import pyarrow as pa

    from harness import telemetry
    from harness.measure import clocks, feed_times


@dataclass(frozen=True)
class Job:
    """One rank's part of a launch, ready to run steps."""

    config: RunConfig
    engine: Engine
    world: World
    step: Step
    feed: Feed
    samples: Samples  # of the training split

    def wants(self, instrument: str) -> bool:
        """Say whether the config asks for an instrument."""
        return instrument in self.config.measure.instruments


@dataclass(frozen=True)
class RankFound:
    """What one rank's instruments found; None for one that did not run."""

    marked: phases.Marked | None
    clocks: clocks.RankClock | None
    ablation: ablation.RankAblation | None
    allreduce: NDArray[np.float64] | None
    sampled_steps: overhead.RankToggled | None  # telemetry on and off
    telemetry: telemetry.NodeSeries | None  # of the node, by its local rank 0
    feed: feed_times.RankFeed | None
    window_start_s: float  # the window's start, seconds since the epoch on this rank's clock
    window_end_s: float


@contextmanager
def sampled(job: Job) -> Iterator[telemetry.Sampler | None]:
    """Let one process a node sample it, started by its local rank 0; nothing is left behind."""
    if not job.wants("telemetry"):
        yield None
        return
    from harness import telemetry

    mine = (socket.gethostname(), os.getpid(), job.engine.device_uuid())
    ranks = [each for each in job.engine.gather(mine) if each[0] == mine[0]]
    if job.world.local_rank != 0:
        yield None
        return
    pids = tuple(pid for _, pid, _ in ranks)
    uuids = tuple(uuid for _, _, uuid in ranks if uuid is not None)
    with telemetry.Sampler(pids, uuids) as sampler:
        yield sampler


def run(job: Job, timed: RankWindow, sampler: telemetry.Sampler | None) -> RankFound:
    """Run what the config asks for and the step has, after the window, on this rank."""
    job.step.device_synchronise()
    steps = len(timed.step_s)
    together = job.step.gradient_allreduce
    marked, clock = _marked(job, steps)
    toggled = None
    if job.wants("telemetry"):
        toggled = overhead.run_toggled(job.step, job.feed, job.engine, steps, sampler)
    ablated = None
    if job.wants("ablation") and together:
        ablated = ablation.run_ablation(job.step, job.feed, job.engine, steps)
    isolated = None
    if together:
        isolated = allreduce.run_isolated(job.engine, job.world, job.step.wire_bytes)
    series = sampler.stop() if sampler is not None else None
    return RankFound(
        marked=marked,
        clocks=clock,
        ablation=ablated,
        allreduce=isolated,
        sampled_steps=toggled,
        telemetry=series,
        feed=_fed(job, timed),
        window_start_s=timed.started_at_s,
        window_end_s=timed.started_at_s + timed.wall_s,
    )


def _marked(job: Job, steps: int) -> tuple[phases.Marked | None, clocks.RankClock | None]:
    if not (job.wants("phases") or job.wants("clocks")):
        return None, None
    from harness.measure import clocks

    compared = job.wants("clocks") and job.step.gradient_allreduce
    before = clocks.exchange(job.engine, job.world) if compared else None
    marked = phases.run_marked(job.step, job.feed.next, job.engine, phases.marked_steps(steps))
    if before is None:
        return marked, None
    after = clocks.exchange(job.engine, job.world)
    return marked, clocks.RankClock(before, after, marked.ready_s)


def _fed(job: Job, timed: RankWindow) -> feed_times.RankFeed | None:
    """Time the feed alone; last, because it has the file cache dropped."""
    if not job.wants("data"):
        return None
    from harness.measure import feed_times

    files = feed_times.files_read(job.config, job.samples)
    return feed_times.run_feed_times(job.step, job.feed, job.engine, job.world, files, timed.wall_s)


def raw_blocks(found: Sequence[RankFound]) -> dict[str, list[NDArray[np.float64] | None]]:
    """Return each rank's seconds of every all-reduce and every compared block, by instrument.

    A block's are the mean of its steps.
    """
    return {
        "allreduce": [one.allreduce for one in found],
        "ablation": [one.ablation.with_s if one.ablation else None for one in found],
        "ablation_without": [one.ablation.without_s if one.ablation else None for one in found],
        "telemetry": [one.sampled_steps.on_s if one.sampled_steps else None for one in found],
        "telemetry_without": [
            one.sampled_steps.off_s if one.sampled_steps else None for one in found
        ],
    }


def series(found: Sequence[RankFound]) -> pa.Table | None:
    """Return the raw series of all nodes; None where none was sampled."""
    nodes = [one.telemetry for one in found if one.telemetry is not None]
    if not nodes:
        return None
    from harness import telemetry

    return telemetry.table(nodes)


def summarise(
    job: Job, found: Sequence[RankFound], window: Window, table: pa.Table | None
) -> dict[str, Any]:
    """Return the fields of the record that instruments fill."""
    together = job.step.gradient_allreduce
    window_step_s = window.wall_s / window.steps
    overheads: dict[str, float] = {}
    errors: dict[str, float] = {}
    fields: dict[str, Any] = {}
    marked = [one.marked.columns for one in found if one.marked is not None]
    if marked:
        fields["phases"] = phases.summarise(marked, synchronised=together)
        longest_s = max(float(columns[:, 0].mean()) for columns in marked)  # as the window's step
        overheads["phases"] = longest_s / window_step_s - 1.0
    checked = [one.clocks for one in found if one.clocks is not None]
    if checked:
        from harness.measure import clocks

        fields["clocks"] = clocks.summarise(checked)
    ablated = [one.ablation for one in found if one.ablation is not None]
    if ablated:
        exposed_s = fields["phases"].exposed_sync_s if marked else None
        fields["ablation"] = ablation.summarise(ablated, exposed_s)
        with_s = np.array(fields["ablation"].with_s)
        overheads["ablation"] = float(with_s.mean()) / window_step_s - 1.0
        errors["ablation"] = standard_error(with_s) / window_step_s
    toggled = [one.sampled_steps for one in found if one.sampled_steps is not None]
    if toggled:
        overheads["telemetry"], errors["telemetry"] = overhead.cost(toggled)
    isolated = [one.allreduce for one in found if one.allreduce is not None]
    if isolated:
        fields["allreduce"] = allreduce.summarise(isolated, job.step.wire_bytes)
    fed = [one.feed for one in found if one.feed is not None]
    if fed:
        from harness.measure import feed_times

        files = feed_times.files_read(job.config, job.samples)
        fields["feed"] = feed_times.summarise(fed, job.samples, job.config.rank_batch, files)
    if table is not None:
        fields["telemetry"] = _telemetry(found, window)
    return fields | {"overheads": overheads, "overhead_errors": errors}


def _telemetry(found: Sequence[RankFound], window: Window) -> Any:
    from harness import telemetry

    nodes = [
        (one.telemetry, one.window_start_s, one.window_end_s)
        for one in found
        if one.telemetry is not None
    ]
    return telemetry.summarise(nodes, samples=window.samples)
