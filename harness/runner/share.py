"""A part of a sweep, for one of several jobs that share it: ``hvdscale run SWEEP --share 3/24``.

The jobs need not know of each other: which launches are whose follows from the sweep alone. Each
measures its own bases (see ``own_base``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.config import RunConfig, Sweep, run_id, sweep_to_yaml
from harness.config.identity import point_id
from harness.config.instruments import is_timeline
from harness.detect import Machine
from harness.errors import ConfigError
from harness.paths import default_data_dir
from harness.runner import schedule
from harness.runner.labels import launch_labels
from harness.runner.listing import write_points
from harness.runner.own_base import Part, distinct, part_launches
from harness.runner.point import Place, launch_point
from harness.runner.progress import Report
from harness.runner.running import Launch, Running
from harness.runner.schedule import Planned, Work
from harness.runner.stale import stale_check
from harness.runner.sweep import Summary, summary
from harness.store import Store

_SHARE = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


@dataclass(frozen=True)
class Share:
    """Number ``index`` (from 0) of ``count`` equal parts."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read "3/24"; ConfigError where it is none."""
        match = _SHARE.fullmatch(text.strip())
        if match is None or not int(match[1]) < int(match[2]):
            raise ConfigError(
                f"--share {text}: write INDEX/COUNT with 0 <= INDEX < COUNT, such as 0/24 "
                '(in a job array "$SLURM_ARRAY_TASK_ID/$((SLURM_ARRAY_TASK_MAX + 1))")'
            )
        return cls(int(match[1]), int(match[2]))


def run_share(
    sweep: Sweep,
    machine: Machine,
    results: Path,
    share: Share,
    *,
    report: Report,
    data_dir: Path | None = None,
    launch: Launch = launch_point,
    training: bool = False,
) -> Summary:
    """Run what is missing of one share of ``sweep``; otherwise as ``run_sweep``.

    Several shares may run at once, on one host or on many: the batch system gave each its part of
    the machine, so there is no lock.
    """
    work = schedule.planned(sweep, machine, results, training=training)
    store = Store.open(work.folder, create=True)
    place = Place(machine, store, data_dir or default_data_dir(), sweep.measure.timeout_s)
    names = launch_labels(work.plan.launches, work.plan.timelines)
    running = Running(place, report, launch, names, stale_check(work.plan, work.folder))
    running.look_at(schedule.run_ids(work, work.max_blocks))
    store.save_config(sweep_to_yaml(sweep))
    blocks = blocks_asked(work, store, running.done)
    write_points(work, store, names, blocks, own_bases=True)
    launches = list(_launches(work, share, blocks, running, schedule.allocations(store)))
    known = sum(1 for one in launches if one.run_id in running.done)
    report.begin(f"{sweep.name} {share.index}/{share.count}", len(launches), known)
    running.run(launches, launches)
    return summary(work.folder, running, left_out=len(work.plan.left_out))


def blocks_asked(work: Work, store: Store, done: set[str]) -> int:
    """Return how many blocks a sweep has by now: one more where those done are still too wide.

    Of a sweep with ``ci_target``, whose blocks are run by jobs that end: a target takes effect when
    they are submitted again.
    """
    blocks, target = work.blocks, work.ci_target
    if target is None:
        return blocks
    asked = points_only(work)
    in_vain = _in_vain(asked, store, done)
    while (
        blocks < work.max_blocks
        and done.issuperset(set(schedule.run_ids(asked, blocks)) - in_vain)
        and schedule.is_wide(work, store, done, blocks, target)
    ):
        blocks += 1
    return blocks


def _in_vain(work: Work, store: Store, done: set[str]) -> set[str]:
    """Return the ids of what never succeeded though each of its first blocks was tried.

    It is tried again with the rest, and the others' blocks do not wait for it: as in ``run``.
    """
    tried = {name for name, _ in store.attempts()}
    found: set[str] = set()
    for config in work.launches(0):
        repeats = 1 if is_timeline(config) else work.max_blocks
        ids = [run_id(config, repeat) for repeat in range(repeats)]
        if done.isdisjoint(ids) and tried.issuperset(ids[: work.blocks]):
            found.update(ids)
    return found


def points_only(work: Work) -> Work:
    """Return ``work`` without the launches of bases that are no points: jobs have their own."""
    plan = replace(work.plan, launches=distinct(work.plan.points))
    return replace(work, plan=plan)


def _launches(
    work: Work,
    share: Share,
    blocks: int,
    running: Running,
    allocation_of: Callable[[str], str],
) -> Iterator[Planned]:
    plan, here = work.plan, work.machine.allocation
    base_of = dict(zip(map(point_id, plan.points), plan.bases, strict=True))
    all_bases = {point_id(base) for base in plan.bases if base is not None}
    points = distinct(plan.points)
    timeline_of = list(plan.timelines)
    for repeat in range(blocks):
        mine = tuple(p for place, p in enumerate(points) if _is_mine(repeat, place, points, share))
        missing = [p for p in mine if run_id(p, repeat) not in running.done]
        bases = [base for p in missing if (base := base_of[point_id(p)]) is not None]
        # A base that is a point, too, and was done in another allocation pairs with nothing here:
        # it is measured once more, as one beside the points.
        elsewhere = {
            point_id(base)
            for base in bases
            if (name := run_id(base, repeat)) in running.done and allocation_of(name) != here
        }
        timelines = tuple(timeline_of[share.index :: share.count]) if repeat == 0 else ()
        part = Part(
            repeat=repeat,
            points=tuple(p for p in mine if point_id(p) not in elsewhere),
            bases=distinct(bases),
            timelines=timelines,
            is_base=frozenset(all_bases),
            sequential=work.ci_target is not None,
        )
        yield from part_launches(part, here, plan.resolved, running.done.__contains__)


def _is_mine(repeat: int, place: int, points: tuple[RunConfig, ...], share: Share) -> bool:
    return (repeat * len(points) + place) % share.count == share.index
