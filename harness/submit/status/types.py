"""What is known of a sweep and its jobs, as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

#: Of a launch. ``running``: its job has nodes. ``queued``: its job waits. ``held``: its job starts
#: when somebody lets it go. ``never``: its job waits for what cannot be. ``submitted``: it has a
#: job, and Slurm could not be asked what that does. ``missing``: nothing is going to do it.
State = Literal["done", "running", "queued", "held", "never", "submitted", "failed", "missing"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class LaunchStatus:
    """One launch of a point."""

    run_id: str
    repeat: int  # from 0
    state: State
    why: str = ""  # one line
    job: str = ""  # "120_3"
    now: bool = False  # it is what its job does at present
    expected: str = ""  # start of its job, ISO 8601 with an offset
    log: str = ""  # a file, or a folder of them
    attempts: int = 0  # that gave no measurement


@dataclass(frozen=True)
class InJobs:
    """Launches of a base that jobs measure themselves: each job has one of its own."""

    done: int
    failed: int


@dataclass(frozen=True)
class PointStatus:
    """One point, or base, and its launches."""

    point_id: str
    label: str
    base: bool
    launches: tuple[LaunchStatus, ...]
    in_jobs: InJobs | None = None  # of a base alone
    training: bool = False

    def counts(self) -> Counter[State]:
        """Return how many launches are in each state."""
        return Counter(launch.state for launch in self.launches)


@dataclass(frozen=True)
class JobStatus:
    """One element of a job array that has nodes."""

    job: str  # "120_3"
    state: str  # in Slurm's words; "" where Slurm was not asked
    nodes: str  # as Slurm writes them: "n[1-2]"
    since: str  # ISO 8601 with an offset; "" where nobody tells
    asked: int  # launches of the element, bases too
    done: int | None  # of this start of the job; None where it has not said so yet
    failed: int | None
    run_id: str = ""  # of the present launch
    label: str = ""
    launch_since: str = ""


@dataclass(frozen=True)
class Cause:
    """Why launches failed, cannot start or are missing: those with the same words together."""

    state: State
    why: str
    count: int
    points: int  # they are of
    expected: str = ""  # first start of their jobs, ISO 8601
    log: str = ""  # of one of them
    tail: tuple[str, ...] = ()  # its last lines, where no record says more
    likely: str = ""  # what these lines stand for, where that is known


@dataclass(frozen=True)
class SweepStatus:
    """One sweep."""

    name: str
    path: str
    points: tuple[PointStatus, ...]
    jobs: tuple[JobStatus, ...] = ()
    causes: tuple[Cause, ...] = ()
    collect: str = ""  # the job that collects when the others are over, and what it does; a line
    written: tuple[str, ...] = ()  # table and report, once all is done: paths
    notes: tuple[str, ...] = ()  # what could not be found out, a line each

    def counts(self) -> Counter[State]:
        """Return how many launches are in each state."""
        total: Counter[State] = Counter()
        for point in self.points:
            total.update(point.counts())
        return total

    @property
    def exit_code(self) -> int:
        """Return 1 where a launch failed, or its job can never start: somebody has to do something.

        That a base failed which a job measured itself is told, and cannot be made good.
        """
        counts = self.counts()
        return int(counts["failed"] + counts["never"] > 0)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        sums = {state: self.counts()[state] for state in STATES}
        return {"name": self.name, "path": self.path, "launches": sums} | {
            name: value for name, value in asdict(self).items() if name not in ("name", "path")
        }
