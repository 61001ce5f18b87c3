"""From what is missing to job arrays and their elements. Pure: writes nothing, asks nobody.

A job array has one node count and one time limit, so each placement has an array of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from harness import __version__
from harness.config import RunConfig
from harness.config.identity import point_id
from harness.config.placement import Placement
from harness.errors import ConfigError
from harness.runner.estimate import START_S, launch_s
from harness.runner.schedule import Work
from harness.submit.manifest import ArrayManifest, Element
from harness.submit.site import Site, time_text

#: On what ``estimate`` guesses: imports from a file system that hundreds of jobs share, and steps
#: slow enough for ``min_steps`` to hold the window up. A job that ends early costs nothing.
GENEROUS = 4.0
#: Of an element besides its launches: start of the job, set-up, data, the warning before the end.
MARGIN_S = 300


@dataclass(frozen=True)
class Wanted:
    """What elements are made for, everything by point id and in the sweep's order."""

    points: Mapping[str, RunConfig]  # bases too, where they are shared
    timelines: Mapping[str, RunConfig]
    bases: Mapping[str, RunConfig]  # that elements measure themselves
    base_of: Mapping[str, str]  # point → its base
    base_ids: frozenset[str]  # of all bases, points or not
    shared_base: bool

    def of(self, repeat: int) -> Iterator[tuple[str, RunConfig]]:
        """Yield id and config of all launches of block ``repeat`` (from 0), without bases."""
        yield from self.points.items()
        if repeat == 0:
            yield from self.timelines.items()


def wanted(work: Work, *, shared_base: bool = False) -> Wanted:
    """Return what jobs are to launch; with ``shared_base`` none has a base of its own."""
    plan = work.plan
    timelines = {point_id(config): config for config in plan.timelines}
    objects = {id(base): base for base in plan.bases if base is not None}  # many points share one
    ids = {key: point_id(base) for key, base in objects.items()}
    base_ids = frozenset(ids.values())
    if shared_base:
        launches = {point_id(config): config for config in plan.launches}
        return Wanted(launches, timelines, {}, {}, base_ids, shared_base=True)
    names = [point_id(config) for config in plan.points]
    bases = {ids[key]: base for key, base in objects.items()}
    base_of = {
        name: ids[id(base)]
        for name, base in zip(names, plan.bases, strict=True)
        if base is not None
    }
    points = dict(zip(names, plan.points, strict=True))
    return Wanted(points, timelines, bases, base_of, base_ids, shared_base=False)


def make_arrays(
    work: Work,
    site: Site,
    asked: Wanted,
    missing: Mapping[int, Sequence[str]],
    *,
    submission: str,
    data_dir: Path,
    points_per_job: int | None = None,
) -> tuple[ArrayManifest, ...]:
    """Return the job arrays of what is missing: ids of ``asked`` by repeat (from 0).

    Every missing launch is in exactly one element, beside the bases of its points. ConfigError
    where not even one point fits into the site's time for a job.
    """
    chunks: dict[tuple[int, ...], list[_Chunk]] = {}
    packer = _Packer(work, site, asked, points_per_job)
    for repeat in sorted(missing):
        for placement, names in _by_placement(work, missing[repeat]).items():
            chunks.setdefault(placement, []).extend(packer.pack(repeat, names))
    slices = [
        (placement, found[start : start + site.max_array_size])
        for placement, found in chunks.items()
        for start in range(0, len(found), site.max_array_size)
    ]
    return tuple(
        _array(work, site, asked, placement, part, number, submission, data_dir)
        for number, (placement, part) in enumerate(slices)
    )


def check_times(work: Work, site: Site, asked: Wanted, points_per_job: int | None = None) -> None:
    """Raise ConfigError where elements would not fit into a job of the site.

    As ``make_arrays`` would, of all launches: whoever asks has not yet looked at what is missing.
    """
    names = (*asked.points, *asked.timelines)
    if points_per_job is not None:
        packer = _Packer(work, site, asked, points_per_job)
        for together in _by_placement(work, names).values():
            list(packer.pack(0, together))
        return
    packer = _Packer(work, site, asked, 1)
    seen: set[tuple[float, float]] = set()
    for name in names:
        base = asked.base_of.get(name)
        times = (packer.time_s(name), packer.time_s(base) if base else 0.0)
        if times not in seen:  # thousands of points have a handful of times
            seen.add(times)
            list(packer.pack(0, [name]))


def launch_time_s(config: RunConfig, work: Work, site: Site) -> float:
    """Return how long a launch may take, start and end included, in seconds.

    A training goes on for as long as it is let.
    """
    most_s = work.sweep.measure.timeout_s + START_S
    if site.time_per_point is not None:
        return min(float(site.time_per_point), most_s)
    return most_s if work.training else min(GENEROUS * launch_s(config.measure), most_s)


def placement_text(devices: Sequence[int]) -> str:
    """Return ``2x4``, ``8+2``."""
    return str(Placement(sum(devices), tuple(devices)))


@dataclass
class _Chunk:
    """An element that is being filled."""

    repeat: int
    points: list[str] = field(default_factory=list)
    timelines: list[str] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of all
    time_s: float = 0.0

    @property
    def size(self) -> int:
        return len(self.points) + len(self.timelines)

    @property
    def limit_s(self) -> int:
        return 60 * math.ceil((self.time_s + MARGIN_S) / 60)  # whole minutes, as Slurm has them

    def add(self, name: str, time_s: float, to: list[str]) -> None:
        to.append(name)
        self.names.add(name)
        self.time_s += time_s


class _Packer:
    """Fills elements one after the other, as many launches in each as fit."""

    def __init__(self, work: Work, site: Site, asked: Wanted, points_per_job: int | None) -> None:
        self._work = work
        self._site = site
        self._asked = asked
        self._most = points_per_job
        self._times: dict[str, float] = {}

    def time_s(self, name: str) -> float:
        """Return the time of one launch."""
        if name not in self._times:
            asked = self._asked
            config = asked.points.get(name) or asked.timelines.get(name) or asked.bases[name]
            self._times[name] = launch_time_s(config, self._work, self._site)
        return self._times[name]

    def pack(self, repeat: int, names: Iterable[str]) -> Iterator[_Chunk]:
        """Yield full elements of one repeat and one placement; ConfigError for one too long."""
        chunk = _Chunk(repeat)
        for name in self._ordered(names):
            if chunk.size and not self._fits(chunk, name):
                yield self._checked(chunk)
                chunk = _Chunk(repeat)
            self._add(chunk, name)
        if chunk.size:
            yield self._checked(chunk)

    def _ordered(self, names: Iterable[str]) -> list[str]:
        """Points of one base beside each other, itself first where it is a point, timelines last.

        Then an element measures few bases, and none that is also a point of it.
        """
        group: dict[str, int] = {}
        base_of, timelines = self._asked.base_of, self._asked.timelines

        def key(name: str) -> tuple[bool, int, bool]:
            base = base_of.get(name, "" if name in timelines else name)
            return name in timelines, group.setdefault(base, len(group)), base != name

        return sorted(names, key=key)

    def _new_base(self, chunk: _Chunk, name: str) -> str | None:
        base = self._asked.base_of.get(name)
        return None if base is None or base == name or base in chunk.names else base

    def _fits(self, chunk: _Chunk, name: str) -> bool:
        if self._most is not None:
            return chunk.size < self._most
        base = self._new_base(chunk, name)
        more_s = self.time_s(name) + (self.time_s(base) if base is not None else 0.0)
        budget_s = float(self._site.time_per_job)
        if self._site.max_time is not None:
            budget_s = min(budget_s, self._site.max_time // 60 * 60 - MARGIN_S)
        return chunk.time_s + more_s <= budget_s

    def _add(self, chunk: _Chunk, name: str) -> None:
        base = self._new_base(chunk, name)
        if base is not None:
            chunk.add(base, self.time_s(base), chunk.bases)
        to = chunk.timelines if name in self._asked.timelines else chunk.points
        chunk.add(name, self.time_s(name), to)

    def _checked(self, chunk: _Chunk) -> _Chunk:
        site = self._site
        if site.max_time is None or chunk.limit_s <= site.max_time:
            return chunk
        launches = chunk.size + len(chunk.bases)
        what = f"{launches} launch{'es' if launches > 1 else ''} of {chunk.time_s / launches:.0f} s"
        cure = (
            "a smaller --points-per-job"
            if chunk.size > 1
            else "a shorter time_per_point, a shorter measure.window_s or measure.timeout_s"
        )
        raise ConfigError(
            f"site {site.name}: a job of {what} with {MARGIN_S} s for start and end needs "
            f"{time_text(chunk.limit_s)}, above max_time {time_text(site.max_time)}; take {cure}, "
            "or another partition"
        )


def _by_placement(work: Work, names: Iterable[str]) -> dict[tuple[int, ...], list[str]]:
    found: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        found.setdefault(work.plan.resolved[name].placement, []).append(name)
    return found


def _array(
    work: Work,
    site: Site,
    asked: Wanted,
    placement: tuple[int, ...],
    chunks: Sequence[_Chunk],
    number: int,
    submission: str,
    data_dir: Path,
) -> ArrayManifest:
    all_of = {**asked.bases, **asked.points, **asked.timelines}
    used = dict.fromkeys(
        name for chunk in chunks for name in (*chunk.bases, *chunk.points, *chunk.timelines)
    )
    place = {name: index for index, name in enumerate(used)}
    resolved = tuple(work.plan.resolved[name] for name in used)
    return ArrayManifest(
        version=__version__,
        sweep=work.sweep.name,
        submission=submission,
        number=number,
        site=site,
        results=work.folder,
        data_dir=data_dir,
        placement=placement,
        devices=_room(one.placement for one in resolved),
        time_limit_s=max(chunk.limit_s for chunk in chunks),
        timeout_s=work.sweep.measure.timeout_s,
        training=work.training,
        sequential=work.ci_target is not None,
        shared_base=asked.shared_base,
        bases=tuple(place[name] for name in used if name in asked.base_ids),
        configs=tuple(all_of[name] for name in used),
        resolved=resolved,
        elements=tuple(
            Element(
                repeat=chunk.repeat,
                points=tuple(place[name] for name in chunk.points),
                bases=tuple(place[name] for name in chunk.bases),
                timelines=tuple(place[name] for name in chunk.timelines),
            )
            for chunk in chunks
        ),
    )


def _room(placements: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return devices per node that all of them fit on, node by node."""
    return tuple(max(node) for node in zip_longest(*set(placements), fillvalue=0))
