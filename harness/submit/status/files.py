"""What submissions and their elements left in a sweep's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel
from pydantic import ValidationError as PydanticError

from harness.bounded import UnfitError, read_file
from harness.config import RunConfig, run_id
from harness.config.identity import point_id
from harness.errors import HarnessError, StoreError
from harness.submit.manifest import ArrayManifest, Element, Jobs, slurm_folder

ELEMENTS = "elements"
_NAME = re.compile(r"(\d{8}T\d{6}Z)-.*")  # of a submission: when
_MANIFEST = re.compile(r"array-(\d{1,6})\.json")
_LOG = re.compile(r".+-(\d{1,12})_(\d{1,9})\.out", re.DOTALL)
#: Newer versions may write more, and a file that cannot be read tells nothing.
_ELEMENT_SCHEMA = 1


class _Launch(BaseModel):
    run_id: str
    label: str
    since: str


class ElementFile(BaseModel):
    """What an element of an array wrote last about itself."""

    schema_version: int
    job_id: str  # of the element itself, unlike ``array``
    array: str
    index: int
    submission: str
    number: int
    nodes: tuple[str, ...]
    started_at: str
    restart_count: int
    state: str  # "running", "ended"
    launch: _Launch | None
    done: int
    failed: int
    reason: str

    @property
    def job(self) -> str:
        """Return its job as Slurm shows it."""
        return f"{self.array}_{self.index}" if self.array else self.job_id

    @property
    def allocation(self) -> str:
        """Return what records of its present start have as their allocation."""
        return self.allocations[-1]

    @property
    def allocations(self) -> tuple[str, ...]:
        """Return the allocations of all its starts."""
        first = f"slurm:{self.job_id}"
        return (first, *(f"{first}.r{again}" for again in range(1, self.restart_count + 1)))


@dataclass(frozen=True)
class Place:
    """One element of a submitted array."""

    array: Submitted
    index: int

    @property
    def element(self) -> Element:
        """Return what it does."""
        return self.array.manifest.elements[self.index]

    @property
    def key(self) -> tuple[str, int, int]:
        """Return submission, number of the array, index."""
        return (*self.array.key, self.index)


@dataclass(frozen=True)
class Submitted:
    """One job array as it was submitted."""

    manifest: ArrayManifest
    job_id: str | None  # None where none was stored
    submitted_at: str  # ISO 8601, UTC

    @property
    def key(self) -> tuple[str, int]:
        """Return submission and number."""
        return (self.manifest.submission, self.manifest.number)

    def launches(self, ids: Mapping[tuple[str, int], str]) -> Iterator[tuple[str, Place]]:
        """Yield run id and element of all launches, without bases that elements measure besides.

        ``ids`` are run ids by point id and repeat, as far as they are known: each takes a hash.
        """
        configs, point_ids = self.manifest.configs, self.point_ids
        for index, element in enumerate(self.manifest.elements):
            place, repeat = Place(self, index), element.repeat
            for at in (*element.points, *element.timelines):
                yield ids.get((point_ids[at], repeat)) or run_id(configs[at], repeat), place

    @cached_property
    def point_ids(self) -> tuple[str, ...]:
        """Return the ids of ``manifest.configs``."""
        return tuple(point_id(config) for config in self.manifest.configs)

    def own_bases(self, element: Element) -> tuple[RunConfig, ...]:
        """Return the bases that an element measures on ids of its own: those that are no points."""
        points = {self.point_ids[at] for at in element.points}
        return tuple(
            self.manifest.configs[at] for at in element.bases if self.point_ids[at] not in points
        )


@dataclass(frozen=True)
class Found:
    """All that is below RESULTS/<sweep>/slurm."""

    arrays: tuple[Submitted, ...] = ()  # the last submitted last
    elements: tuple[ElementFile, ...] = ()
    collects: tuple[str, ...] = ()  # jobs that collect when arrays are over
    faults: tuple[str, ...] = ()  # of files that cannot be read, a line each


def read_submissions(results: Path) -> Found:
    """Read manifests, job ids and element files of a sweep's folder."""
    folder = slurm_folder(results)
    faults: list[str] = []
    arrays: list[Submitted] = []
    collects: list[str] = []
    for path in _folders(folder):
        jobs = _jobs(path, faults)
        arrays += _arrays(path, jobs, faults)
        collects += [jobs.collect] if jobs.collect is not None else []
    arrays.sort(key=lambda one: (one.submitted_at, *one.key))
    elements = tuple(_elements(folder / ELEMENTS))
    return Found(tuple(arrays), elements, tuple(collects), tuple(faults))


def find_logs(results: Path) -> dict[tuple[str, int], Path]:
    """Return (array's job id, index) → log of the element's batch script, from one listing."""
    folder = slurm_folder(results) / "logs"
    found = ((name, _LOG.fullmatch(name)) for name in _names(folder))
    return {(match[1], int(match[2])): folder / name for name, match in found if match}


def _folders(folder: Path) -> list[Path]:
    found = [folder / name for name in sorted(_names(folder)) if name not in (ELEMENTS, "logs")]
    return [path for path in found if path.is_dir()]


def _jobs(folder: Path, faults: list[str]) -> Jobs:
    try:
        return Jobs.read(folder)
    except HarnessError as error:
        faults.append(str(error))
        return Jobs()


def _arrays(folder: Path, jobs: Jobs, faults: list[str]) -> Iterator[Submitted]:
    for name in sorted(_names(folder)):
        if not _MANIFEST.fullmatch(name):
            continue
        path = folder / name
        try:
            manifest = ArrayManifest.read(path)
            when = _submitted_at(folder.name) or datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except HarnessError as error:
            faults.append(f"{error}; its jobs are left out here")
            continue
        except OSError as error:
            faults.append(f"{path}: cannot be read: {error.strerror}; its jobs are left out here")
            continue
        text = when.isoformat(timespec="milliseconds")
        yield Submitted(manifest, jobs.arrays.get(manifest.number), text)


def _submitted_at(name: str) -> datetime | None:
    match = _NAME.fullmatch(name)
    try:
        return datetime.strptime(match[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) if match else None
    except ValueError:
        return None  # digits that are no time


def _elements(folder: Path) -> Iterator[ElementFile]:
    for name in sorted(_names(folder)):
        if not name.endswith(".json"):
            continue
        try:
            found = ElementFile.model_validate_json(read_file(folder / name))
        except (OSError, UnfitError, PydanticError):
            continue  # of another version, or cut off by a full disk: Slurm tells, too
        if found.schema_version == _ELEMENT_SCHEMA:
            yield found


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{folder}: cannot be read: {error.strerror}") from error
