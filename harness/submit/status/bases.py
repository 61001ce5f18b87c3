"""Bases that jobs measured themselves, on ids that no plan has: who made how many."""

from __future__ import annotations

from collections.abc import Iterable

from harness.config import run_id
from harness.config.identity import point_id
from harness.store import BrokenError, MissingError, Store
from harness.submit.status.asked import Asked, run_ids
from harness.submit.status.files import ElementFile, Submitted
from harness.submit.status.judge import Evidence, Failure
from harness.submit.status.types import Cause, InJobs


class Bases:
    """What is known of the bases that jobs measure beside their points."""

    def __init__(self, store: Store, known: Evidence, asked: Iterable[Asked]) -> None:
        self._known = known
        self._own: dict[str, list[str]] = {}  # point id → run ids
        arrays = {array.key: array for array in known.found.arrays}
        for file in known.found.elements:
            array = arrays.get((file.submission, file.number))
            if array is not None and file.index < len(array.manifest.elements):
                self._add(array, file)
        points = tuple(asked)
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
        """Return why bases of jobs failed; no submission makes them good again."""
        found: dict[str, list[tuple[str, Failure]]] = {}
        for key, names in self._own.items():
            for name in self._failed(names):
                failure = self._known.failure(name)
                if failure is not None:
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

    def _add(self, array: Submitted, file: ElementFile) -> None:
        element = array.manifest.elements[file.index]
        for base in array.own_bases(element):
            self._own.setdefault(point_id(base), []).extend(
                run_id(base, element.repeat, allocation) for allocation in file.allocations
            )

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
