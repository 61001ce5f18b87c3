"""From files and Slurm's answers to the state of every launch. Asks nobody by itself.

What is on disk comes first: a launch whose record is there is done, whatever the queue says. Then
the queue, then the newest attempt's record, then how its last job ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.record import Status
from harness.slurm import Job
from harness.submit.manifest import ASKED_TO_END, parse_comment
from harness.submit.status.files import ElementFile, Found, Place
from harness.submit.status.types import LaunchStatus, State
from harness.submit.status.words import how_ended, never_starts, why_pending

AGAIN = "submit the sweep again"
#: Reasons of an element that a signal ended: a preemption's, too. Slurm knows more of it.
_BY_SIGNAL = ("", ASKED_TO_END)
_UNASKED = "Slurm was not asked whether it starts again"


@dataclass(frozen=True)
class Failure:
    """What the record of an attempt that gave no measurement says."""

    cause: str
    status: Status
    allocation: str
    started_at: str  # ISO 8601, UTC
    log: Path


#: (run id, attempt) → its record's words.
ReadFailure = Callable[[str, int], Failure]


@dataclass
class Evidence:
    """All that is known of a sweep's launches."""

    found: Found
    done: frozenset[str]
    attempts: Mapping[str, int]  # run id → newest attempt that gave no measurement
    read_failure: ReadFailure
    jobs: tuple[Job, ...] | None  # that wait or run; None where Slurm could not be asked
    ids: Mapping[tuple[str, int], str]  # run ids by point id and repeat, as far as they are known
    logs: Mapping[tuple[str, int], Path] = field(default_factory=dict)
    places: dict[str, list[Place]] = field(init=False)  # run id → elements, the newest last
    files: dict[tuple[str, int, int], ElementFile] = field(init=False)
    job_of: dict[tuple[str, int, int], Job] = field(init=False)
    array_ids: dict[tuple[str, int], str] = field(init=False)
    _sizes: dict[tuple[str, int], int] = field(init=False)  # of arrays, in elements

    def __post_init__(self) -> None:
        self.files = {}
        self._sizes = {one.key: len(one.manifest.elements) for one in self.found.arrays}
        for one in sorted(self.found.elements, key=lambda one: one.started_at):
            # Without an array somebody runs it by hand, and no job of Slurm's stands for it.
            if one.array and self._has((one.submission, one.number), one.index):
                self.files[one.submission, one.number, one.index] = one
        # Also where no answer of sbatch was stored.
        self.array_ids = {key[:2]: one.array for key, one in self.files.items()}
        self.array_ids |= {one.key: one.job_id for one in self.found.arrays if one.job_id}
        self.job_of = {}
        self.learn(self.jobs or ())
        self.places = {}
        for array in self.found.arrays:
            for run_id, place in array.launches(self.ids):
                self.places.setdefault(run_id, []).append(place)

    def learn(self, jobs: Iterable[Job]) -> None:
        """Take what Slurm says of jobs; those of other sweeps are left out.

        A comment says whose a job is. Where a site has comments of its own, the stored id does.
        """
        by_id = {job_id: key for key, job_id in self.array_ids.items()}
        for job in jobs:
            key = parse_comment(job.comment) or by_id.get(job.array)
            if key is None or job.index is None or not self._has(key, job.index):
                continue
            self.array_ids.setdefault(key, job.array)
            self.job_of[*key, job.index] = job

    def _has(self, array: tuple[str, int], index: int) -> bool:
        """Say whether an array of this sweep has such an element: a script may be sent by hand."""
        return 0 <= index < self._sizes.get(array, 0)

    def job_id(self, place: Place) -> str:
        """Return a place's job as Slurm shows it; "" where it was never submitted."""
        array = self.array_ids.get(place.array.key)
        return f"{array}_{place.index}" if array else ""

    def live(self, run_id: str) -> Place | None:
        """Return the element that is to launch it: one that runs before one that waits."""
        found = [
            (job.runs, order, place)
            for order, place in enumerate(self.places.get(run_id, ()))
            if (job := self.job_of.get(place.key)) is not None and job.live
        ]
        return max(found, key=lambda one: one[:2])[2] if found else None

    def last(self, run_id: str) -> Place | None:
        """Return the newest element that was submitted for it."""
        places = self.places.get(run_id, ())
        return next((place for place in reversed(places) if self.job_id(place)), None)

    def unknown(self, run_ids: Iterable[str]) -> set[str]:
        """Return the jobs whose end Slurm must be asked for: of what is neither done nor live."""
        last = (
            self.last(name) for name in run_ids if name not in self.done and not self.live(name)
        )
        return {self.job_id(place) for place in last if place and place.key not in self.job_of}

    def failure(self, run_id: str) -> Failure | None:
        """Return the newest attempt that gave no measurement."""
        attempt = self.attempts.get(run_id)
        return None if attempt is None else self.read_failure(run_id, attempt)


@dataclass(frozen=True)
class _Verdict:
    state: State
    why: str = ""
    job: str = ""
    now: bool = False
    expected: str = ""
    log: Path | None = None


def judge(run_id: str, repeat: int, known: Evidence) -> LaunchStatus:
    """Return what became of one launch, or will."""
    if run_id in known.done:
        verdict = _Verdict("done")
    else:
        place = known.live(run_id)
        verdict = _live(run_id, place, known) if place else _over(run_id, known)
    return LaunchStatus(
        run_id=run_id,
        repeat=repeat,
        state=verdict.state,
        why=verdict.why,
        job=verdict.job,
        now=verdict.now,
        expected=verdict.expected,
        log=str(verdict.log or ""),
        attempts=known.attempts.get(run_id, 0),
    )


def _live(run_id: str, place: Place, known: Evidence) -> _Verdict:
    job, name = known.job_of[place.key], known.job_id(place)
    if job.waits:
        why, expected = why_pending(job.reason), as_utc(job.start)
        return _Verdict("held" if job.held else "queued", why, name, expected=expected)
    file = known.files.get(place.key)
    if file is not None and file.launch is not None and file.launch.run_id == run_id:
        return _Verdict("running", job=name, now=True)
    ending = job.state == "COMPLETING"
    failure = known.failure(run_id)
    # A file that says it has ended is of the start before, unless the job is ending just now.
    present = file is not None and (file.state == "running" or ending)
    if failure is not None and file is not None and present:
        if ending and failure.status == "preempted":
            return _Verdict("queued", "its job was preempted, and starts again", name)
        if failure.allocation == file.allocation:  # its job is at another launch now
            return _Verdict("failed", failure.cause, name, log=failure.log)
    return _Verdict("running", f"its job {'is ending' if ending else 'has not come to it'}", name)


def _over(run_id: str, known: Evidence) -> _Verdict:
    """Judge a launch that no job is going to do, as far as Slurm was asked."""
    place, failure = known.last(run_id), known.failure(run_id)
    if place is None:
        if failure is not None:
            return _Verdict("failed", failure.cause, log=failure.log)
        return _Verdict("missing", "no launch of it has come to an end")
    file, name = known.files.get(place.key), known.job_id(place)
    newer = failure is not None and (
        failure.started_at >= place.array.submitted_at
        or (file is not None and failure.allocation in file.allocations)
    )
    job = known.job_of.get(place.key)
    # It says that it is to be tried again: what became of that says the job's end.
    again = failure is not None and newer and _again(failure, file, job)
    if failure is not None and newer and not again:
        return _Verdict("failed", failure.cause, name, log=failure.log)
    if job is not None:
        return _of_end(job, file, name, known.logs.get(_log_key(job)))
    if known.jobs is None:
        return _unasked(run_id, file, name, failure)
    if failure is not None and again:
        why = "its job was preempted at it, and is gone; Slurm no longer knows how it ended"
        return _Verdict("failed", why, name, log=failure.log)
    log = known.logs.get((known.array_ids[place.array.key], place.index))
    return _forgotten(file, name, log, failure)


def _again(failure: Failure, file: ElementFile | None, job: Job | None) -> bool:
    """Say whether the job of a failed attempt was to start again, or did."""
    if failure.status == "preempted":
        return True
    if failure.status != "timeout" or file is None or failure.allocation not in file.allocations:
        return False
    starts = max(file.restart_count, job.restarts if job is not None else 0)
    return job is not None and starts > file.allocations.index(failure.allocation)


def _of_end(job: Job, file: ElementFile | None, name: str, log: Path | None) -> _Verdict:
    if never_starts(job):
        why = f"its job can never start; scancel {job.array} and {AGAIN}"
        return _Verdict("never", f"{why_pending(job.reason)}: {why}", name)
    in_order = file is not None and file.state == "ended"
    if file is not None and in_order and _says_why(file, job):
        # It says itself why it left launches over. FAILED is then what became of others.
        return _Verdict("missing", _left(file), name, log=log)
    if job.state == "COMPLETED":
        return _Verdict("missing", "its job ended without it", name, log=log)
    # The log of an element that wrote its end ends with what it was told then.
    of_end = None if in_order and job.state in ("CANCELLED", "PREEMPTED") else log
    return _Verdict("failed", how_ended(job), name, log=of_end)


def _says_why(file: ElementFile, job: Job) -> bool:
    return file.reason not in _BY_SIGNAL or job.state == "FAILED"


def _unasked(run_id: str, file: ElementFile | None, name: str, failure: Failure | None) -> _Verdict:
    """Judge by what an element wrote, where Slurm could not be asked."""
    if file is None:
        return _Verdict("submitted", "it has a job; Slurm was not asked what that does", name)
    preempted = failure is not None and failure.status == "preempted"
    if failure is not None and preempted and failure.allocation == file.allocation:
        return _Verdict("submitted", f"its job was preempted; {_UNASKED}", name)
    if file.state == "running":
        now = file.launch is not None and file.launch.run_id == run_id
        return _Verdict("running", "" if now else "its job had not come to it", name, now=now)
    if failure is not None and not preempted:
        return _Verdict("failed", failure.cause, name, log=failure.log)
    if file.reason in _BY_SIGNAL:
        return _Verdict("submitted", f"its job was ended before it; {_UNASKED}", name)
    return _Verdict("missing", _left(file), name)


def _forgotten(
    file: ElementFile | None, name: str, log: Path | None, failure: Failure | None
) -> _Verdict:
    """Judge a launch whose job Slurm no longer knows."""
    if file is not None and file.state == "running":
        why = f"its job is gone in the middle of a launch (on {', '.join(file.nodes)}); Slurm no "
        return _Verdict("failed", f"{why}longer knows why", name, log=log)
    if failure is not None:
        return _Verdict("failed", failure.cause, name, log=failure.log)
    if file is not None:
        return _Verdict("missing", _left(file), name, log=log)
    if log is not None:
        why = "its job ended before it came to a launch; Slurm no longer knows how"
        return _Verdict("failed", why, name, log=log)
    return _Verdict("missing", "its job is gone, and never began", name)


def _left(file: ElementFile) -> str:
    return f"its job ended without it{': ' if file.reason else ''}{file.reason}"


def _log_key(job: Job) -> tuple[str, int]:
    assert job.index is not None  # Evidence.learn takes no others
    return job.array, job.index


def as_utc(text: str) -> str:
    """Return a time of Slurm's, which is local here, as ISO 8601 in UTC; "" for none."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat() if text else ""
    except ValueError:
        return ""
