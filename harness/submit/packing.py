"""How much goes into one job: launches one after the other, as many as fit into its time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from harness.config import RunConfig
from harness.errors import ConfigError
from harness.runner.estimate import START_S, launch_s
from harness.runner.schedule import Work
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


def launch_time_s(config: RunConfig, work: Work, site: Site) -> float:
    """Return how long a launch may take, start and end included, in seconds.

    A training goes on for as long as it is let.
    """
    most_s = work.sweep.measure.timeout_s + START_S
    if site.time_per_point is not None:
        return min(float(site.time_per_point), most_s)
    return most_s if work.training else min(GENEROUS * launch_s(config.measure), most_s)


@dataclass
class Chunk:
    """An element that is being filled, with the ids of its points."""

    repeat: int
    points: list[str] = field(default_factory=list)
    timelines: list[str] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of all
    time_s: float = 0.0

    @property
    def size(self) -> int:
        """Return how many launches it has, without bases."""
        return len(self.points) + len(self.timelines)

    @property
    def limit_s(self) -> int:
        """Return the time limit that it needs."""
        return 60 * math.ceil((self.time_s + MARGIN_S) / 60)  # whole minutes, as Slurm has them

    def add(self, name: str, time_s: float, to: list[str]) -> None:
        """Put a launch to one of the lists."""
        to.append(name)
        self.names.add(name)
        self.time_s += time_s


class Packer:
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

    def pack(self, repeat: int, names: Iterable[str]) -> Iterator[Chunk]:
        """Yield full elements of one repeat and one placement; ConfigError for one too long."""
        chunk = Chunk(repeat)
        for name in self._ordered(names):
            if chunk.size and not self._fits(chunk, name):
                yield self._checked(chunk)
                chunk = Chunk(repeat)
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

    def _new_base(self, chunk: Chunk, name: str) -> str | None:
        base = self._asked.base_of.get(name)
        return None if base is None or base == name or base in chunk.names else base

    def _fits(self, chunk: Chunk, name: str) -> bool:
        if self._most is not None:
            return chunk.size < self._most
        base = self._new_base(chunk, name)
        more_s = self.time_s(name) + (self.time_s(base) if base is not None else 0.0)
        budget_s = float(self._site.time_per_job)
        if self._site.max_time is not None:
            budget_s = min(budget_s, self._site.max_time // 60 * 60 - MARGIN_S)
        return chunk.time_s + more_s <= budget_s

    def _add(self, chunk: Chunk, name: str) -> None:
        base = self._new_base(chunk, name)
        if base is not None:
            chunk.add(base, self.time_s(base), chunk.bases)
        to = chunk.timelines if name in self._asked.timelines else chunk.points
        chunk.add(name, self.time_s(name), to)

    def _checked(self, chunk: Chunk) -> Chunk:
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
