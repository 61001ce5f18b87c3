"""The scheduler: everything that is asked of Slurm's commands, and their answers as plain data.

Another scheduler would be another file like this one. Nothing else runs these commands.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.digits import whole
from harness.errors import HarnessError, MissingDependencyError

TIMEOUT_S = 60.0  # of a command: a controller that is busy answers late
QUEUE_PERIOD_S = 1.0  # between two questions to the queue: a login node is shared
MAX_INDICES = 4_000_001  # of an array: the highest MaxArraySize
_INDICES = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_SEPARATOR = "\x1f"  # in no name that a user would give

#: States in which a job still has launches before it.
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
RUNNING = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED",
     "SUSPENDED"}
)  # fmt: skip
#: Reasons of a waiting job that will not pass: it never starts.
NEVER = frozenset({"DependencyNeverSatisfied"})
#: Beginnings of reasons of a waiting job that somebody has to let go first.
HELD = ("JobHeld", "JobHoldMaxRequeue", "launch failed requeued held")

# Of squeue(1): job id as shown, array, index, state, reason, nodes, comment, start.
_QUEUE_FORMAT = _SEPARATOR.join(("%i", "%F", "%K", "%T", "%r", "%N", "%k", "%S"))
# Of sinfo(1): name, nodes by state "allocated/idle/other/total", CPUs, MiB, GRES, time limit,
# availability, nodes that a job may have.
_PARTITION_FORMAT = _SEPARATOR.join(("%P", "%F", "%c", "%m", "%G", "%l", "%a", "%s"))
_ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "NodeList")  # that every version's sacct has


class SchedulerError(HarnessError):
    """Slurm refused, or does not answer; the message has its own words."""


@dataclass(frozen=True)
class Job:
    """One job, or one element of a job array, as Slurm tells of it."""

    job_id: str  # as shown: "123", "123_4"
    array: str  # "123"; of a job that is no array, its own id
    index: int | None
    state: str  # "PENDING", "RUNNING", "COMPLETED", "NODE_FAIL" …
    reason: str = ""  # "Resources", "Dependency" …; "" for none
    nodes: str = ""  # compressed: "n[1-2]"
    comment: str = ""
    exit_code: int | None = None
    signal: int | None = None  # that ended its batch script
    restarts: int = 0
    preempted: bool = False  # it was told to leave its nodes to another job
    start: str = ""  # of one that waits: expected; the cluster's time, "2026-11-28T11:49:00"

    @property
    def waits(self) -> bool:
        """Say whether it has not started, or is to start again, and can."""
        return self.state in WAITING and self.reason not in NEVER

    @property
    def held(self) -> bool:
        """Say whether it waits for somebody to let it go."""
        held = self.state in ("REQUEUE_HOLD", "SPECIAL_EXIT") or self.reason.startswith(HELD)
        return held and self.waits

    @property
    def runs(self) -> bool:
        """Say whether it has nodes now."""
        return self.state in RUNNING

    @property
    def live(self) -> bool:
        """Say whether something may still come of it."""
        return self.waits or self.runs


@dataclass(frozen=True)
class Partition:
    """One kind of node of a partition, as ``sinfo`` tells of it."""

    name: str
    is_default: bool
    nodes: int
    cpus: int  # logical, of a node
    memory_mib: int
    gres: str  # "gpu:a100:8(S:0-1)"; "" for none
    time_limit: str  # "2-00:00:00", "infinite"
    available: bool
    unusable_nodes: int = 0  # of ``nodes``: down, drained or reserved now
    max_nodes: int | None = None  # of a job, where the partition has a limit


def is_here() -> bool:
    """Say whether this machine has Slurm's commands."""
    return shutil.which("sbatch") is not None


def submit(options: Sequence[str], script: Path, arguments: Sequence[str] = ()) -> str:
    """Submit a batch script; return the job's id. SchedulerError in Slurm's words."""
    said = _run(submit_argv(options, script, arguments))
    job_id = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
    if whole(job_id) is None:
        raise SchedulerError(f"sbatch {script}: answered no job id, but: {said.strip()!r}")
    return job_id


def submit_argv(
    options: Sequence[str], script: Path, arguments: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the command of ``submit``; pure."""
    return ("sbatch", "--parsable", *options, str(script), *arguments)


_asked_at_s = float("-inf")


def queue() -> tuple[Job, ...]:
    """Return this user's jobs that wait or run, an element a job; at most one question a second."""
    global _asked_at_s
    wait_s = _asked_at_s + QUEUE_PERIOD_S - time.monotonic()
    if wait_s > 0:
        time.sleep(wait_s)
    _asked_at_s = time.monotonic()
    said = _run(("squeue", "--me", "--noheader", "--array", f"--format={_QUEUE_FORMAT}"))
    return parse_queue(said)


def parse_queue(text: str) -> tuple[Job, ...]:
    """Read ``squeue``'s lines; what is no line of ours is left out."""
    jobs = []
    for line in text.splitlines():
        cells = line.split(_SEPARATOR)
        if len(cells) != len(_QUEUE_FORMAT.split(_SEPARATOR)):
            continue
        shown, array, index, state, reason, nodes, comment, start = map(str.strip, cells)
        jobs.append(
            Job(
                job_id=shown,
                array=array,
                index=whole(index),
                state=state,
                reason=_named(reason),
                nodes=nodes,
                comment=_named(comment),
                start=_named(start),
            )
        )
    return tuple(jobs)


def ended(job_ids: Iterable[str]) -> tuple[Job, ...]:
    """Return what Slurm still knows of jobs, ended ones too: elements ("120_3"), or whole arrays.

    From the controller, which forgets after ``MinJobAge``, and what it lacks from the accounting
    where there is one. All known elements of each array are told; what is forgotten is not.
    """
    wanted = tuple(dict.fromkeys(job_ids))
    found = {job.job_id: job for array in _arrays(wanted) for job in _of_controller(array)}
    known = found.keys() | {job.array for job in found.values()}
    lacking = _arrays(job_id for job_id in wanted if job_id not in known)
    if lacking:
        found = {job.job_id: job for job in _of_accounting(lacking)} | found
    return tuple(found.values())


def _arrays(job_ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(job_id.partition("_")[0] for job_id in job_ids))


def job(job_id: str, timeout_s: float = TIMEOUT_S) -> Job | None:
    """Return one job as the controller sees it now; None where it does not tell in time.

    An element of an array is asked for as "120_3": its array's other elements answer to a number.
    """
    found = _of_controller(job_id, timeout_s)
    return found[0] if found else None


def _of_controller(job_id: str, timeout_s: float = TIMEOUT_S) -> tuple[Job, ...]:
    argv = ("scontrol", "show", "job", "--oneliner", job_id)
    try:
        return parse_jobs(_run(argv, timeout_s=timeout_s))
    except SchedulerError:
        return ()  # forgotten


def parse_jobs(text: str) -> tuple[Job, ...]:
    """Read the lines of ``scontrol show job --oneliner``; elements that wait may share one."""
    return tuple(job for line in text.splitlines() for job in _jobs_of(_fields(line)))


def _fields(line: str) -> Mapping[str, str]:
    # Values may hold spaces (a command's arguments), and no value that we ask for does.
    return dict(re.findall(r"(?:^|\s)(\w[\w:/]*)=(\S*)", line))


def _jobs_of(fields: Mapping[str, str]) -> Iterable[Job]:
    if "JobId" not in fields:
        return
    array = fields.get("ArrayJobId", fields["JobId"])
    code, _, number = fields.get("ExitCode", "").partition(":")
    one = Job(
        job_id=array,
        array=array,
        index=None,
        state=fields.get("JobState", ""),
        reason=_named(fields.get("Reason", "").replace("_", " ")),  # squeue has spaces
        nodes=_named(fields.get("NodeList", "")),
        comment=_named(fields.get("Comment", "")),
        exit_code=whole(code),
        signal=whole(number) or None,
        restarts=_count(fields.get("Restarts", "")),
        preempted=_named(fields.get("PreemptTime", "")) != "",
        start=_named(fields.get("StartTime", "")),
    )
    indices = fields.get("ArrayTaskId")
    if indices is None:
        yield one
        return
    for index in parse_indices(indices):
        yield replace(one, job_id=f"{array}_{index}", index=index)


def parse_indices(text: str) -> tuple[int, ...]:
    """Expand an array's indices: ``0-2,5,8-12:2%4`` is (0, 1, 2, 5, 8, 10, 12).

    What is none is left out, and so is what goes beyond as many as Slurm can have.
    """
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _INDICES.fullmatch(part.strip())
        if match is None:
            continue
        first, last, step = (int(number) if number else 0 for number in match.groups())
        more = range(first, max(first, last) + 1, step or 1)
        if len(found) + len(more) > MAX_INDICES:
            break
        found += more
    return tuple(found)


def _of_accounting(job_ids: Sequence[str]) -> tuple[Job, ...]:
    try:
        said = _run(
            ("sacct", "--allocations", "--noheader", "--parsable2", f"--delimiter={_SEPARATOR}",
             f"--format={','.join(_ACCOUNT_FIELDS)}", f"--jobs={','.join(job_ids)}")
        )  # fmt: skip
    except (SchedulerError, MissingDependencyError):
        return ()  # many clusters keep no accounts
    return parse_accounts(said)


def parse_accounts(text: str) -> tuple[Job, ...]:
    """Read ``sacct``'s lines; "CANCELLED by 1000" is CANCELLED, elements may share a line."""
    jobs: list[Job] = []
    for line in text.splitlines():
        cells = line.split(_SEPARATOR)
        if len(cells) != len(_ACCOUNT_FIELDS) or not cells[0]:
            continue
        shown, state, code, nodes = cells
        array, _, indices = shown.partition("_")
        status, _, number = code.partition(":")
        one = Job(
            job_id=shown,
            array=array,
            index=None,
            state=state.partition(" ")[0],
            nodes="" if nodes == "None assigned" else nodes,
            exit_code=whole(status),
            signal=whole(number) or None,
        )
        # "120_3", or "120_[4-9%2]" of those that have not started.
        elements = parse_indices(indices.strip("[]"))
        jobs += [replace(one, job_id=f"{array}_{i}", index=i) for i in elements] or [one]
    return tuple(jobs)


def partitions() -> tuple[Partition, ...]:
    """Return the partitions that this user sees, one entry for each kind of node in them."""
    # Without --exact, nodes of 16 and of 32 CPUs are one line, "16+".
    return parse_partitions(
        _run(("sinfo", "--noheader", "--exact", f"--format={_PARTITION_FORMAT}"))
    )


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Read ``sinfo``'s lines; what is no line of ours is left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(_SEPARATOR)]
        if len(cells) != len(_PARTITION_FORMAT.split(_SEPARATOR)):
            continue
        name, by_state, cpus, memory, gres, limit, up, size = cells
        *_, other, total = [_amount(count) for count in ("0/0/0/" + by_state).split("/")]
        found.append(
            Partition(
                name=name.removesuffix("*"),
                is_default=name.endswith("*"),
                nodes=total,
                cpus=_amount(cpus),
                memory_mib=_amount(memory),
                gres=_named(gres),
                time_limit=limit,
                available=up == "up",
                unusable_nodes=other,
                max_nodes=_amount(size.rpartition("-")[2]) or None,  # "1-4", "1-infinite"
            )
        )
    return tuple(found)


def settings() -> Mapping[str, str]:
    """Return Slurm's own settings (``scontrol show config``): MaxArraySize, MpiDefault …"""
    lines = _run(("scontrol", "show", "config")).splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def on_every_node(nodes: int, argv: Sequence[str]) -> str:
    """Run a short command once on each of this job's ``nodes``; return what it printed.

    Beside whatever steps there are. SchedulerError where it failed on any.
    """
    tasks = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpus-per-task=1")
    return _run(("srun", "--mpi=none", "--overlap", "--export=ALL", *tasks, *argv), both=True)


def mpi_list() -> str:
    """Return what ``srun --mpi=list`` says; for ``harness.detect.parse_mpi_plugins``."""
    return _run(("srun", "--mpi=list"), both=True)


def _named(text: str) -> str:
    """Return a value, "" for the words that Slurm has for none."""
    return "" if text in ("None", "(null)", "N/A", "none", "Unknown") else text


def _count(text: str) -> int:
    return whole(text) or 0


def _amount(text: str) -> int:
    """Read a number as ``sinfo`` writes it: 2048 is "2K"."""
    match = re.fullmatch(r"([0-9]{1,18})([KMG]?)\+?", text)
    return int(match.group(1)) << 10 * " KMG".index(match.group(2) or " ") if match else 0


def _run(argv: Sequence[str], *, both: bool = False, timeout_s: float = TIMEOUT_S) -> str:
    """Return what a command prints; ``both``: on stderr, too."""
    if shutil.which(argv[0]) is None:
        raise MissingDependencyError(
            f"{argv[0]} is not here: this is no machine of a Slurm cluster; log in to one"
        )
    try:
        done = subprocess.run(
            list(argv),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
            # Dates and words in one form; no default of the user's changes what is asked.
            # Nor is a list of an array's indices cut off at 64 characters.
            env={**_without_defaults(os.environ), "LC_ALL": "C", "SLURM_BITSTR_LEN": "0"},
        )
    except subprocess.TimeoutExpired:
        raise SchedulerError(
            f"{argv[0]}: no answer in {timeout_s:g} s; is slurmctld up? (scontrol ping)"
        ) from None
    except OSError as error:
        raise SchedulerError(f"{argv[0]}: cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        named = f"{argv[0]}: "
        said = [line.strip().removeprefix(named) for line in done.stderr.splitlines()]
        words = "; ".join(list(filter(None, said))[-3:]) or f"exit code {done.returncode}"
        raise SchedulerError(f"{named}{words}")
    return done.stdout + (done.stderr if both else "")


def _without_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out what changes these commands' output, keeps sbatch, or makes an array of a job.

    What else a user sets for sbatch stays.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(("SQUEUE_", "SACCT_", "SINFO_"))
        and name not in ("SLURM_TIME_FORMAT", "SBATCH_WAIT", "SBATCH_ARRAY_INX")
    }
