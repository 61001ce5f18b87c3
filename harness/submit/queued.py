"""Which launches of a sweep wait or run in Slurm's queue, by what earlier submissions wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.config import run_id
from harness.errors import HarnessError, StoreError
from harness.slurm import Job
from harness.submit.manifest import (
    JOBS_FILE,
    ArrayManifest,
    Jobs,
    manifest_path,
    parse_comment,
    slurm_folder,
)


@dataclass(frozen=True)
class Queued:
    """What is in the queue for a sweep."""

    run_ids: frozenset[str] = frozenset()  # of points and timelines; bases are their elements'
    job_ids: tuple[str, ...] = ()  # of the arrays, once each


def submissions(results: Path) -> tuple[str, ...]:
    """Return the names of a sweep's submissions, oldest first; ``results`` is its folder."""
    folder = slurm_folder(results)
    return tuple(sorted(path.parent.name for path in folder.glob(f"*/{JOBS_FILE}")))


def queued(results: Path, jobs: Iterable[Job]) -> Queued:
    """Return what live jobs are to launch; StoreError where a manifest cannot be used.

    A job says in its comment whose it is, so one whose id was never stored is found as well.
    Where a site has comments of its own, its stored id tells.
    """
    stored = _stored(results)
    run_ids: set[str] = set()
    job_ids: dict[str, None] = {}
    manifests: dict[Path, ArrayManifest] = {}
    for job in jobs:
        key = parse_comment(job.comment) or stored.get(job.array)
        if key is None or not job.live:
            continue
        path = manifest_path(results, *key)
        if path not in manifests:
            if not path.exists():
                continue  # of another sweep
            manifests[path] = _read(path, job)
        if _is_elsewhere(manifests[path].results, results):
            continue  # this folder is a copy: its jobs write into the one that they were made for
        run_ids |= _launches(manifests[path], job.index)
        job_ids[job.array] = None
    return Queued(frozenset(run_ids), tuple(job_ids))


def _is_elsewhere(submitted: Path, results: Path) -> bool:
    """Say whether a submission was for another folder, that is still there: names may differ."""
    try:
        return submitted != results and not submitted.samefile(results)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{submitted}: cannot be read: {error.strerror}") from error


def _read(path: Path, job: Job) -> ArrayManifest:
    try:
        return ArrayManifest.read(path)
    except HarnessError as error:
        raise StoreError(
            f"{error} (job {job.array} is in the queue with it: scancel {job.array} first)"
        ) from error


def _stored(results: Path) -> dict[str, tuple[str, int]]:
    """Return job id → submission and number of an array, as far as Slurm's answers were stored."""
    found: dict[str, tuple[str, int]] = {}
    for submission in submissions(results):
        jobs = Jobs.read(slurm_folder(results) / submission)
        found |= {job_id: (submission, number) for number, job_id in jobs.arrays.items()}
    return found


def _launches(manifest: ArrayManifest, index: int | None) -> set[str]:
    """Return the run ids of an element, of all elements where Slurm does not say which."""
    elements = manifest.elements if index is None else manifest.elements[index : index + 1]
    return {
        run_id(manifest.configs[place], element.repeat)
        for element in elements
        for place in (*element.points, *element.timelines)
    }
