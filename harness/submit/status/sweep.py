"""The status of one sweep: files are read, Slurm is asked, and both are judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from harness import slurm
from harness.errors import HarnessError
from harness.runner.causes import known_cause
from harness.runner.logs import read_tail
from harness.slurm import Job
from harness.store import BrokenError, MissingError, Store
from harness.store.reading import read_sealed
from harness.submit.status.asked import Asked, asked_for, run_ids, with_live
from harness.submit.status.bases import Bases
from harness.submit.status.files import Submitted, find_logs, read_submissions
from harness.submit.status.judge import Evidence, Failure, as_utc, judge
from harness.submit.status.types import (
    Cause,
    JobStatus,
    LaunchStatus,
    PointStatus,
    State,
    SweepStatus,
)
from harness.submit.status.words import never_starts, why_pending

_RESULTS = ("table.csv", "report.html")  # of `collect` and `report`; their code takes long to load
TAIL_LINES = 5  # of a log, for people
_NAMED: tuple[State, ...] = ("queued", "held", "never", "submitted", "failed", "missing")


class Scheduler(Protocol):
    """Who knows of jobs."""

    problem: str  # why it could not be asked; "" where it answered

    def queue(self) -> tuple[Job, ...] | None:
        """Return the jobs that wait or run; None where it cannot be asked."""

    def ended(self, job_ids: Iterable[str]) -> tuple[Job, ...]:
        """Return what it still knows of these jobs."""


class AskSlurm:
    """Slurm itself. Its queue is asked once, also for many sweeps."""

    def __init__(self) -> None:
        self.problem = ""
        self._asked = False
        self._jobs: tuple[Job, ...] | None = None

    def queue(self) -> tuple[Job, ...] | None:
        """Return the jobs of this user that wait or run; None where Slurm does not answer."""
        if not self._asked:
            self._asked = True
            try:
                self._jobs = slurm.queue()
            except HarnessError as error:
                self.problem = str(error)
        return self._jobs

    def ended(self, job_ids: Iterable[str]) -> tuple[Job, ...]:
        """Return what Slurm still knows of these jobs."""
        try:
            return slurm.ended(job_ids)
        except HarnessError as error:
            self.problem = str(error)
            return ()


def sweep_status(folder: Path, scheduler: Scheduler) -> SweepStatus:
    """Return the state of all launches of the sweep in ``folder``; StoreError as of the store."""
    store = Store.open(folder)
    found = read_submissions(folder)
    # Before the records are listed: what ends meanwhile is then done, and not lost.
    jobs = scheduler.queue() if found.arrays else ()
    asked = asked_for(store, found.arrays)
    attempts: dict[str, int] = {}
    for name, attempt in store.attempts():
        attempts[name] = max(attempt, attempts.get(name, 0))
    known = Evidence(
        found=found,
        done=frozenset(store.done_ids()),
        attempts=attempts,
        read_failure=lambda name, attempt: _failure(store, name, attempt),
        jobs=jobs,
        ids={(one.point_id, repeat): name for one in asked for repeat, name in one.runs},
        logs=find_logs(folder) if found.arrays else {},
    )
    if jobs is not None:
        known.learn(scheduler.ended(sorted(known.unknown(run_ids(asked)))))
    asked = with_live(asked, known)
    bases = Bases(store, known, asked)
    points = tuple(_point(one, known, bases) for one in asked)
    problem = scheduler.problem if found.arrays and not _all_done(points) else ""
    return SweepStatus(
        name=store.name,
        path=str(folder),
        points=points,
        jobs=tuple(_jobs(known)),
        causes=(*_causes(points), *bases.causes()),
        collect=_collect(found.collects, jobs or ()),
        written=tuple(_written(folder)) if _all_done(points) else (),
        notes=(*found.faults, *([f"Slurm was not asked: {problem}"] if problem else [])),
    )


def _written(folder: Path) -> Iterator[str]:
    """Yield the paths of table and report, as far as there are such."""
    for name in _RESULTS:
        if (folder / name).is_file():
            yield str(folder / name)


def _collect(job_ids: Sequence[str], jobs: Iterable[Job]) -> str:
    """Return what the last job does that collects at the end; "" where there is none any more."""
    there = {job.job_id: job for job in jobs}
    last = next((there[name] for name in reversed(job_ids) if name in there), None)
    return f"job {last.job_id} {_doing(last)}" if last is not None else ""


def _doing(job: Job) -> str:
    if job.runs:
        return f"runs on {job.nodes}"
    never = "can never start, scancel it; " if never_starts(job) else ""
    return f"{never}waits ({why_pending(job.reason)})"


def _all_done(points: Iterable[PointStatus]) -> bool:
    return all(launch.state == "done" for point in points for launch in point.launches)


def _failure(store: Store, name: str, attempt: int) -> Failure:
    log = store.logs / name / str(attempt)
    try:
        data = read_sealed(store.runs / f"{name}.attempt-{attempt}.json")
    except (BrokenError, MissingError) as fault:
        return Failure(f"its record cannot be used: {fault}", "failed", "", "", log)
    error, block = data.get("error") or {}, data.get("block") or {}
    return Failure(
        cause=error.get("cause") or data["status"],
        status=data["status"],
        allocation=block.get("allocation", ""),
        started_at=data.get("started_at", ""),
        log=log,
    )


def _point(one: Asked, known: Evidence, bases: Bases) -> PointStatus:
    return PointStatus(
        point_id=one.point_id,
        label=one.label,
        base=one.base,
        launches=tuple(judge(name, repeat, known) for repeat, name in one.runs),
        in_jobs=bases.of(one),
        training=one.training,
    )


def _jobs(known: Evidence) -> Iterator[JobStatus]:
    """Yield the elements that have nodes, in the order of their jobs."""
    arrays = {array.key: array for array in known.found.arrays}
    if known.jobs is None:
        running = {key: file.state == "running" for key, file in known.files.items()}
    else:
        running = {key: job.runs for key, job in known.job_of.items()}
    for key in sorted(key for key, runs in running.items() if runs and key[:2] in arrays):
        yield _job(known, key, arrays[key[:2]])


def _job(known: Evidence, key: tuple[str, int, int], array: Submitted) -> JobStatus:
    job, file = known.job_of.get(key), known.files.get(key)
    if file is not None and file.state != "running":
        file = None  # of the start before
    element = array.manifest.elements[key[2]]
    extra = array.own_bases(element)
    launch = file.launch if file is not None else None
    return JobStatus(
        job=job.job_id if job is not None else file.job if file is not None else "",
        state=job.state if job is not None else "",
        nodes=job.nodes if job is not None else ",".join(file.nodes) if file is not None else "",
        since=file.started_at if file is not None else as_utc(job.start) if job is not None else "",
        asked=len(element.points) + len(element.timelines) + len(extra),
        done=file.done if file is not None else None,
        failed=file.failed if file is not None else None,
        run_id=launch.run_id if launch is not None else "",
        label=launch.label if launch is not None else "",
        launch_since=launch.since if launch is not None else "",
    )


def _causes(points: Iterable[PointStatus]) -> Iterator[Cause]:
    """Yield what there is to say of launches that are neither done nor running, most first."""
    groups: dict[tuple[State, str], list[tuple[str, LaunchStatus]]] = {}
    for point in points:
        for launch in point.launches:
            if launch.state in _NAMED:
                groups.setdefault((launch.state, launch.why), []).append((point.point_id, launch))
    for (state, why), group in sorted(
        groups.items(), key=lambda one: (_NAMED.index(one[0][0]), -len(one[1]), one[0][1])
    ):
        log = next((launch.log for _, launch in group if launch.log), "")
        lines = read_tail(Path(log)) if state == "failed" and Path(log).is_file() else ()
        yield Cause(
            state=state,
            why=why,
            count=len(group),
            points=len({key for key, _ in group}),
            expected=min((one.expected for _, one in group if one.expected), default=""),
            log=log if state == "failed" else "",
            tail=lines[-TAIL_LINES:],
            likely=known_cause(lines) or "",
        )
