"""``hvdscale submit``: what is missing of a sweep, frozen and handed to Slurm as job arrays."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness import slurm
from harness.config import Sweep, run_id, sweep_to_yaml
from harness.errors import ConfigError, HarnessError, MissingDependencyError
from harness.paths import default_data_dir
from harness.runner import schedule
from harness.runner.alone import alone
from harness.runner.labels import label, launch_labels
from harness.runner.listing import write_points
from harness.runner.schedule import Work
from harness.runner.share import blocks_asked
from harness.runner.stale import stale_check
from harness.store import Store, write_atomic
from harness.store.files import named_errors
from harness.submit.arrays import check_times, make_arrays, wanted
from harness.submit.lonely import lonely_bases
from harness.submit.manifest import Jobs, manifest_path
from harness.submit.packing import Wanted
from harness.submit.queued import Queued, queued, submissions
from harness.submit.script import log_folder
from harness.submit.site import Site
from harness.submit.submission import Batch, Submission

_DEPENDENCY = re.compile(r"[A-Za-z0-9:,?+_]+", re.ASCII)

Note = Callable[[str], None]


class SubmitError(HarnessError):
    """Slurm refused after something was written; what is submitted stays."""

    exit_code = 1


@dataclass(frozen=True)
class Wishes:
    """How a sweep is submitted, besides what it and the site say."""

    throttle: int | None = None  # elements of an array that run at a time
    shared_base: bool = False  # no element measures a base: it is an array of its own
    points_per_job: int | None = None
    after: str | None = None  # a dependency of sbatch, of every array
    collect: bool = True

    def check(self) -> None:
        """Raise ConfigError for what sbatch would not understand."""
        for name, value in (("throttle", self.throttle), ("points-per-job", self.points_per_job)):
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value}: should be at least 1")
        if self.after is not None and not _DEPENDENCY.fullmatch(self.after):
            raise ConfigError(
                f"--after {self.after}: no dependency of sbatch; write afterok:123, "
                "or afterany:123:124"
            )


def submit(
    sweep: Sweep,
    site: Site,
    results: Path,
    *,
    wishes: Wishes = Wishes(),
    training: bool = False,
    dry_run: bool = False,
    note: Note = lambda text: print(text, file=sys.stderr),
) -> Submission:
    """Submit what of ``sweep`` is neither done nor in the queue, a job array a placement.

    Everything is checked before anything is written; what fails then is a HarnessError. With
    ``dry_run`` nothing is written and nobody but the queue is asked. Where Slurm refuses an array,
    those before it stay submitted (SubmitError), and the next call submits the rest.
    """
    wishes.check()
    python = site.python or sys.executable
    work = schedule.planned(sweep, site.machine(sys.executable), results, training=training)
    asked = wanted(work, shared_base=wishes.shared_base)
    check_times(work, site, asked, wishes.points_per_job)
    log_folder(work.folder)
    data_dir = Path(site.data_dir) if site.data_dir is not None else default_data_dir()
    draft = _Draft(work, site, asked, wishes, data_dir, python, note)
    if dry_run:
        return draft.made(schedule.existing_store(work.folder), read_only=True)[0]
    if not slurm.is_here():
        raise MissingDependencyError(
            "sbatch is not here: submit from a login node of the cluster; --dry-run works anywhere"
        )
    store = Store.open(work.folder, create=True)
    with alone(store.path, "submitter"):
        submission, blocks = draft.made(store)
        store.save_config(sweep_to_yaml(sweep))
        names = launch_labels(work.plan.launches, work.plan.timelines)
        write_points(work, store, names, blocks, own_bases=not wishes.shared_base)
        return _send(submission) if submission.arrays else submission


@dataclass(frozen=True)
class _Draft:
    """A checked sweep on a site, before it is known what of it is missing."""

    work: Work
    site: Site
    asked: Wanted
    wishes: Wishes
    data_dir: Path
    python: str
    note: Note

    def made(self, store: Store | None, *, read_only: bool = False) -> tuple[Submission, int]:
        """Return what is to be submitted, and how many blocks the sweep has by now."""
        work = self.work
        # Before the records are looked at: what ends meanwhile is then done, and not missing.
        waiting = self._queued(read_only)
        done = _done(work, store, None if read_only else self.note) if store is not None else set()
        blocks = blocks_asked(work, store, done) if store is not None else work.blocks
        missing, counts = self._missing(blocks, done, waiting.run_ids)
        if store is not None and not missing and not waiting.run_ids:
            self._tell_of_bases(store, done, blocks)
        name = _new_name()
        arrays = make_arrays(
            work,
            self.site,
            self.asked,
            missing,
            submission=name,
            data_dir=self.data_dir,
            points_per_job=self.wishes.points_per_job,
        )
        submission = Submission(
            name=name,
            results=work.folder,
            arrays=arrays,
            python=self.python,
            throttle=self.wishes.throttle,
            after=self.wishes.after,
            collects=self.wishes.collect,
            earlier=waiting.job_ids,
            done=counts["done"],
            queued=counts["queued"],
            left_out=len(work.plan.left_out),
        )
        return submission, blocks

    def _tell_of_bases(self, store: Store, done: set[str], blocks: int) -> None:
        for base in lonely_bases(self.asked, store, done, blocks):
            name = label(self.asked.bases[base])
            self.note(
                f"base {name}: all of its points are done, and none beside it (it was changed "
                "since, or always failed); with --shared-base it is submitted alone"
            )

    def _queued(self, read_only: bool) -> Queued:
        if not submissions(self.work.folder):
            return Queued()  # nothing can be there: the queue is not asked in vain
        if read_only and not slurm.is_here():
            self.note("sbatch is not here, so what is queued or running is not known, and listed")
            return Queued()
        return queued(self.work.folder, slurm.queue())

    def _missing(
        self, blocks: int, done: set[str], waiting: frozenset[str]
    ) -> tuple[Mapping[int, list[str]], Mapping[str, int]]:
        """Return the point ids that are missing by repeat, and how many are not, and why."""
        missing: dict[int, list[str]] = {}
        counts = {"done": 0, "queued": 0}
        for repeat in range(blocks):
            for key, config in self.asked.of(repeat):
                name = run_id(config, repeat) if done or waiting else ""
                if name in done:
                    counts["done"] += 1
                elif name in waiting:
                    counts["queued"] += 1
                else:
                    missing.setdefault(repeat, []).append(key)
        return missing, counts


def _done(work: Work, store: Store, report: Note | None) -> set[str]:
    """Return the ids of what is done and whole; without ``report`` nothing is moved.

    StoreError where something was measured otherwise than it would be now.
    """
    names = store.done_ids().intersection(schedule.run_ids(work, work.max_blocks))
    if not names:
        return names
    check = stale_check(work.plan, work.folder)
    if report is not None:
        return store.verify(names, lambda broken: report(str(broken)), check)
    whole = set()
    for one in store.decided(names):
        check(one)
        whole.add(one.run_id)
    return whole


def _send(submission: Submission) -> Submission:
    """Write everything down, then call sbatch; each answer is on disk before the next call."""
    folder = submission.folder
    with named_errors(folder, "written"):
        log_folder(submission.results).mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    batches = []
    for array in submission.arrays:
        array.write(manifest_path(submission.results, submission.name, array.number))
        batches.append(submission.array_batch(array))
        _write(batches[-1])
    jobs = Jobs()
    jobs.write(folder)
    for array, batch in zip(submission.arrays, batches, strict=True):
        try:
            job_id = slurm.submit(batch.options, batch.script)
        except HarnessError as error:
            raise SubmitError(_in_part(error, submission, jobs)) from error
        jobs = jobs.model_copy(update={"arrays": {**jobs.arrays, array.number: job_id}})
        jobs.write(folder)
    if submission.collects:
        jobs = jobs.model_copy(update={"collect": _send_collect(submission, jobs)})
        jobs.write(folder)
    return replace(submission, job_ids=tuple(jobs.arrays.values()), collect_id=jobs.collect)


def _send_collect(submission: Submission, jobs: Jobs) -> str:
    batch = submission.collect_batch(list(jobs.arrays.values()))
    _write(batch)
    try:
        return slurm.submit(batch.options, batch.script)
    except HarnessError as error:
        raise SubmitError(
            f"{error}; all arrays are submitted (jobs {', '.join(jobs.arrays.values())}), but not "
            f"the job that collects: run hvdscale collect {submission.results} when they are over"
        ) from error


def _in_part(error: HarnessError, submission: Submission, jobs: Jobs) -> str:
    count, all_of = len(jobs.arrays), len(submission.arrays)
    ids = f" (jobs {', '.join(jobs.arrays.values())})" if count else ""
    return (
        f"{error}; {count} of {all_of} arrays are submitted{ids}; "
        "put it right and submit again for the rest"
    )


def _write(batch: Batch) -> None:
    with named_errors(batch.script, "written"):
        write_atomic(batch.script, batch.text.encode())


def _new_name() -> str:
    """Return the name of a submission: when, and something that no other has."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
