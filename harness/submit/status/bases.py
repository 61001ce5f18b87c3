"""Bases that jobs measured themselves, on ids that no plan has: who made how many."""

from __future__ import annotations

from collections.abc import Iterable

from harness.config import run_id
from harness.config.identity import point_id
from harness.runner.schedule import allocations
from harness.store import BrokenError, MissingError, Store
from harness.submit.status.asked import Asked, run_ids
from harness.submit.status.files import ElementFile, Place, Submitted
from harness.submit.status.judge import Evidence, Failure
from harness.submit.status.types import Cause, InJobs


class Bases:
    """What is known of the bases that jobs measure beside their points."""

    def __init__(self, store: Store, known: Evidence, asked: Iterable[Asked]) -> None:
        self._known = known
        self._own: dict[str, list[str]] = {}  # point id → run ids
        self._made_in: dict[str, tuple[Place, str]] = {}  # run id → element, allocation
        self._allocation_of = allocations(store)
        arrays = {array.key: array for array in known.found.arrays}
        for file in known.found.elements:
            array = arrays.get((file.submission, file.number))
            if array is not None and file.index < len(array.manifest.elements):
                self._add(array, file)
        points = tuple(asked)
        self._asked = set(run_ids(points))
        self._in_jobs = {one.point_id for one in points if one.base and not one.runs} | {*self._own}
        if self._in_jobs:
            explained = {name for names in self._own.values() for name in names}
            self._look_at(store, explained | known.places.keys() | {*run_ids(points)})

    def of(self, one: Asked) -> InJobs | None:
        """Return what jobs measured of a base; None where they do not measure it themselves."""
        if one.point_id not in self._in_jobs:
            return None
        names = self._own.get(one.point_id, [])
        done = sum(name in self._known.done for name in names)
        return InJobs(done, len(self._failed(names)))

    def causes(self) -> tuple[Cause, ...]:
        """Return why bases of jobs failed that points still need.

        No submission makes them good again, but a later job may do their points with its own.
        """
        found: dict[str, list[tuple[str, Failure]]] = {}
        for key, names in self._own.items():
            for name in self._failed(names):
                failure = self._known.failure(name)
                if failure is not None and self._needed(name, failure):
                    found.setdefault(failure.cause, []).append((key, failure))
        return tuple(
            Cause(
                state="failed",
                why=f"a job's own base: {why}",
                count=len(group),
                points=len({key for key, _ in group}),
                log=str(group[0][1].log),
            )
            for why, group in found.items()
        )

    def _failed(self, names: Iterable[str]) -> list[str]:
        known = self._known
        return [name for name in names if name in known.attempts and name not in known.done]

    def _needed(self, name: str, failure: Failure) -> bool:
        """Say whether a point was done beside the base that failed, or has no other job."""
        if name not in self._made_in:
            return True  # nobody knows of which points
        place, allocation = self._made_in[name]
        configs, element = place.array.manifest.configs, place.element
        points = self._asked & {run_id(configs[at], element.repeat) for at in element.points}
        done = points & self._known.done
        if any(self._allocation_of(point) == allocation for point in done):
            return True
        # What a preempted or cancelled job left over is told of its points.
        return failure.status not in ("preempted", "cancelled") and any(
            self._is_here(point, place, allocation) for point in points - done
        )

    def _is_here(self, point: str, place: Place, allocation: str) -> bool:
        """Say whether no later start, or job, is to do a point with a base of its own."""
        live = self._known.live(point)
        if live is None:
            return True
        file = self._known.files.get(place.key)
        runs = live.key == place.key and self._known.job_of[place.key].runs
        return runs and file is not None and file.allocation == allocation

    def _add(self, array: Submitted, file: ElementFile) -> None:
        place = Place(array, file.index)
        element = place.element
        for base in array.own_bases(element):
            for allocation in file.allocations:
                name = run_id(base, element.repeat, allocation)
                self._own.setdefault(point_id(base), []).append(name)
                self._made_in[name] = (place, allocation)

    def _look_at(self, store: Store, explained: set[str]) -> None:
        """Find the bases of jobs that wrote no file of their own: those of scripts by hand."""
        known = self._known
        for name in (known.done | known.attempts.keys()) - explained:
            try:
                record = (
                    store.read(name)
                    if name in known.done
                    else store.read_failure(name, known.attempts[name])
                )
            except (BrokenError, MissingError):
                continue  # ``run`` and ``submit`` say so, and measure again
            key = point_id(record.config)
            if key in self._in_jobs:
                self._own.setdefault(key, []).append(name)
