"""What asked a runner to end: a user, or the batch system whose job it is."""

from __future__ import annotations

import signal

from harness import slurm
from harness.detect import Machine, Slurm
from harness.errors import HarnessError
from harness.runner.diagnose import INTERRUPTED, Verdict
from harness.runner.interrupts import TIME_NEAR

#: Slurm kills 30 s (its KillWait) after it asked, and ending the launch took some of that.
_ANSWER_S = 10.0
_TIME_WAS_NEAR = Verdict(
    "timeout", "the job's time limit was near; the next submission goes on from here"
)
_TIME_WAS_OVER = Verdict(
    "timeout", "the job's time limit was over; the next submission goes on from here"
)
STARTS_AGAIN = Verdict("preempted", "Slurm took the nodes back, and starts the job again later")
_TAKEN_BACK = Verdict(
    "preempted", "Slurm took the nodes back for another job; the next submission goes on from here"
)
_NODE_DOWN = Verdict("failed", "a node of the job went down")
_CANCELLED = Verdict("cancelled", "the job was cancelled (scancel)")
_NO_ANSWER = Verdict("cancelled", "the job was asked to end (SIGTERM); Slurm did not say why")
_TOLD = Verdict("cancelled", "the runner was asked to end (SIGTERM)")
_HUNG_UP = Verdict("cancelled", "the runner's terminal was closed (SIGHUP)")
_ASKED = Verdict("cancelled", "the runner was asked to end (SIGTERM), and its job was not")
#: Where nobody is to be asked; any other signal is Ctrl-C's.
_OF_SIGNAL: dict[signal.Signals | None, Verdict] = {
    TIME_NEAR: _TIME_WAS_NEAR,
    signal.SIGTERM: _TOLD,
    signal.SIGHUP: _HUNG_UP,
}


def ended_by(number: signal.Signals | None, machine: Machine) -> Verdict:
    """Return status and cause of a launch that was ended because of a signal to its runner.

    Slurm sends SIGTERM alike to a job that is cancelled, preempted, requeued or over its time, so
    it is asked; where it does not answer in time, the cause says so.
    """
    if machine.slurm is None or number not in (signal.SIGTERM, TIME_NEAR):
        return _OF_SIGNAL.get(number, INTERRUPTED)
    job = _ask(machine.slurm)
    if number == TIME_NEAR:
        # A site may have the warning sent before a preemption, too (send_user_signal).
        return _TAKEN_BACK if job is not None and job.preempted else _TIME_WAS_NEAR
    return _NO_ANSWER if job is None else _why(job, machine.slurm.restart_count)


def _why(job: slurm.Job, restart_count: int) -> Verdict:
    """Say why ``job`` was told to end; ``restart_count`` is that of the start which was told.

    While its processes end its state is COMPLETING, whatever it will be afterwards.
    """
    if job.restarts > restart_count or job.state in slurm.WAITING:
        return STARTS_AGAIN
    if job.preempted or job.state == "PREEMPTED":
        return _TAKEN_BACK
    if job.reason == "TimeLimit" or job.state in ("TIMEOUT", "DEADLINE"):
        return _TIME_WAS_OVER
    if job.reason == "NodeDown" or job.state == "NODE_FAIL":
        return _NODE_DOWN
    return _ASKED if job.state == "RUNNING" else _CANCELLED


def _ask(own: Slurm) -> slurm.Job | None:
    # To its plain number an array's other elements may answer as well.
    element = f"{own.array_job_id}_{own.array_task_id}" if own.array_task_id else own.job_id
    try:
        return slurm.job(element, timeout_s=_ANSWER_S)
    except HarnessError:
        return None
