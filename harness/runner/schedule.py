"""What a sweep launches, in which order, and how much of it is missing. Writes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.config import RunConfig, Sweep, run_id
from harness.config.identity import point_id
from harness.config.instruments import is_timeline
from harness.detect import Machine
from harness.record import RunRecord
from harness.runner.stale import stale_check
from harness.spec import BlockRef, Resolved
from harness.store import BrokenError, MissingError, Store
from harness.validate import Plan, plan

MIN_BLOCKS_FOR_TARGET = 5  # below it a t-interval says little, however narrow it happens to be


@dataclass(frozen=True)
class Work:
    """A checked sweep on a machine, and the folder of its results (which may not be there yet)."""

    sweep: Sweep
    machine: Machine
    plan: Plan
    folder: Path
    training: bool = False  # each point is trained, instead of measured in windows

    def launches(self, repeat: int) -> tuple[RunConfig, ...]:
        """Return the distinct configs that block ``repeat`` (from 0) launches.

        Timelines are there to look into, not to compare: once is enough, in the first block.
        """
        return self.plan.launches + (self.plan.timelines if repeat == 0 else ())

    @property
    def blocks(self) -> int:
        """Return how many blocks there are at least."""
        measure = self.sweep.measure
        if self.ci_target is None:
            return measure.blocks
        return max(measure.blocks, min(MIN_BLOCKS_FOR_TARGET, measure.max_blocks))

    @property
    def max_blocks(self) -> int:
        """Return how many blocks there are at most."""
        return self.blocks if self.ci_target is None else self.sweep.measure.max_blocks

    @property
    def ci_target(self) -> float | None:
        """Return how narrow throughput's intervals are to be; trainings are not run for that."""
        return None if self.training else self.sweep.measure.ci_target


@dataclass(frozen=True)
class Planned:
    """One launch of a block."""

    run_id: str
    config: RunConfig
    resolved: Resolved
    block: BlockRef
    problem: str = ""  # why it cannot be started here; then it is a failed attempt at once


def planned(sweep: Sweep, machine: Machine, results: Path, *, training: bool = False) -> Work:
    """Check a sweep against a machine; raise a HarnessError on the first fault."""
    checked = plan(sweep, machine, training=training)
    work = Work(sweep, machine, checked, (results / sweep.name).absolute(), training)
    if work.ci_target is not None:
        from harness.stats import require_scipy

        require_scipy("measure.ci_target")  # not after the blocks that it is to judge
    return work


def block_launches(work: Work, repeat: int) -> Iterator[Planned]:
    """Yield the launches of block ``repeat`` (from 0) in its shuffled order.

    The order follows from seed, repeat and point alone: it is the same on every machine and for
    every Python, a block that was interrupted goes on in its own order, and a point added to the
    sweep leaves the others in theirs. Launches for a timeline come last, so that base and points
    stay as near to each other in time as without them.
    """
    bases = {point_id(base) for base in work.plan.bases if base is not None}
    for order, config in enumerate(shuffled(work.launches(repeat), repeat)):
        key = point_id(config)
        block = BlockRef(
            repeat=repeat,
            allocation=work.machine.allocation,
            order=order,
            is_base=key in bases,
            # The first blocks, too: an interval that ends a sweep at the first look is the least
            # sure.
            sequential=work.ci_target is not None,
        )
        yield Planned(run_id(config, repeat), config, work.plan.resolved[key], block)


def shuffled(configs: Iterable[RunConfig], repeat: int) -> list[RunConfig]:
    """Return configs in the order of block ``repeat``, launches for a timeline last."""
    return sorted(configs, key=lambda config: (is_timeline(config), _shuffle_key(config, repeat)))


def launches_here(
    work: Work, repeat: int, done: Collection[str], allocation_of: Callable[[str], str]
) -> Iterator[Planned]:
    """Yield block ``repeat`` as it goes on in this allocation; ``done`` are ids.

    A base is measured once more where a point that it belongs to is missing and the base that is
    done is of another allocation (``allocation_of`` its id): blocks pair inside one allocation
    only, and a later job, or another host, is not the machine of before.
    """
    pairs = zip(work.plan.points, work.plan.bases, strict=True)
    needed = {
        point_id(base)
        for point, base in pairs
        if base is not None and run_id(point, repeat) not in done
    }
    launches = list(block_launches(work, repeat))
    # Before anything of this block begins, and of this block alone.
    known = frozenset(launch.run_id for launch in launches if launch.run_id in done)
    for launch in launches:
        yield launch
        old = launch.run_id in known and point_id(launch.config) in needed
        if old and allocation_of(launch.run_id) != launch.block.allocation:
            own = run_id(launch.config, repeat, launch.block.allocation)
            yield replace(launch, run_id=own)


def run_ids(work: Work, blocks: int) -> list[str]:
    """Return the ids of all launches of the first ``blocks`` blocks."""
    return [run_id(c, repeat) for repeat in range(blocks) for c in work.launches(repeat)]


def missing(work: Work) -> Iterator[Planned]:
    """Yield the launches that ``run`` would start, in order; writes nothing.

    Raises StoreError where ``run`` would, except that raw steps are not looked at.
    """
    store = existing_store(work.folder)
    done = _whole(work, store) if store is not None else set()
    for repeat in range(work.blocks):
        for launch in launches_here(work, repeat, done, allocations(store)):
            if launch.run_id not in done and not (store and store.is_done(launch.run_id)):
                yield launch


def allocations(store: Store | None) -> Callable[[str], str]:
    """Return what tells the allocation of a done run, "" of one that is gone meanwhile."""

    def allocation_of(name: str) -> str:
        try:
            return store.read(name).block.allocation if store is not None else ""
        except (BrokenError, MissingError):
            return ""

    return allocation_of


def _whole(work: Work, store: Store) -> set[str]:
    check = stale_check(work.plan, work.folder)
    found = set()
    for one in store.decided(store.done_ids().intersection(run_ids(work, work.max_blocks))):
        check(one)
        found.add(one.run_id)
    return found


def existing_store(folder: Path) -> Store | None:
    """Return the store of a sweep that has results, None of one that has none."""
    if folder.is_dir() and not (folder / "sweep.json").exists():
        return None
    return Store.open(folder) if _may_be_there(folder) else None


def _may_be_there(folder: Path) -> bool:
    """Say whether a name is not free: also that of a link to itself, which leads nowhere."""
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # to open it says why
    return True


def is_wide(work: Work, store: Store, done: Iterable[str], blocks: int, target: float) -> bool:
    """Say whether any point's interval after ``blocks`` blocks is wider than ``target``.

    The interval is the analysis's own: that of throughput(point) / throughput(base), paired inside
    blocks of one allocation; of the throughput alone where there is no base. Without an interval
    it is as wide as can be. A point or base that never succeeded does not count: more blocks would
    not narrow it.
    """
    from harness.stats import geometric_interval, log_mean_interval, paired_log_ratios

    rates = _throughputs(work, store, set(done), blocks)
    for config, base in zip(work.plan.points, work.plan.bases, strict=True):
        point = rates.get(point_id(config), {})
        below = rates.get(point_id(base), {}) if base is not None else None
        if not point or below == {} or config == base:
            continue
        logs = paired_log_ratios(point, below) if below is not None else None
        if logs == {}:
            return True  # no block of one allocation has both yet
        interval = geometric_interval(point) if logs is None else log_mean_interval(logs)
        width = interval.relative_half_width
        if width is None or width > target:
            return True
    return False


def _throughputs(
    work: Work, store: Store, done: set[str], blocks: int
) -> dict[str, dict[tuple[str, int], float]]:
    """Return point id → (allocation, repeat) → samples per second, of what is done."""
    found: dict[str, dict[tuple[str, int], float]] = {}
    for record in _records(work, store, done, blocks):
        if record.window is not None:
            block = (record.block.allocation, record.block.repeat)
            rate = record.window.throughput_samples_per_s
            found.setdefault(point_id(record.config), {})[block] = rate
    return found


def _records(work: Work, store: Store, done: set[str], blocks: int) -> Iterator[RunRecord]:
    """Yield what is done of the first ``blocks`` blocks, bases of other allocations included."""
    for name in run_ids(work, blocks):
        if name in done:
            yield store.read(name)
    bases = {point_id(base) for base in work.plan.bases if base is not None}
    for name in store.done_ids().difference(run_ids(work, work.max_blocks)):
        try:
            record = store.read(name)
        except (BrokenError, MissingError):
            continue
        if point_id(record.config) in bases and record.block.repeat < blocks:
            yield record


def _shuffle_key(config: RunConfig, repeat: int) -> bytes:
    return hashlib.sha256(f"{config.seed}/{repeat}/{point_id(config)}".encode()).digest()
