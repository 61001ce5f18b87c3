"""What asked a runner to end: a user, or the batch system whose job it is."""

from __future__ import annotations

import signal

from harness import slurm
from harness.detect import Machine
from harness.errors import HarnessError
from harness.runner.diagnose import INTERRUPTED, Verdict
from harness.runner.interrupts import TIME_NEAR

_TIME = "the job's time limit was near; the next submission goes on from here"


def ended_by(number: signal.Signals | None, machine: Machine) -> Verdict:
    """Return status and cause of a launch that was ended because of a signal to its runner.

    Slurm sends SIGTERM alike to a job that is cancelled, preempted, requeued or over its time, so
    it is asked. It answers within its KillWait (30 s by default), or not at all.
    """
    if number == TIME_NEAR:
        return Verdict("timeout", _TIME)
    if number != signal.SIGTERM or machine.slurm is None:
        return INTERRUPTED
    try:
        job = slurm.job(machine.slurm.job_id)
    except HarnessError:
        job = None
    if job is None:
        return Verdict("cancelled", "the job was asked to end (SIGTERM); Slurm did not say why")
    if job.preempted or job.state in ("PREEMPTED", *slurm.WAITING):
        return Verdict("preempted", "Slurm took the nodes back, and starts the job again later")
    if job.state == "TIMEOUT":
        return Verdict("timeout", _TIME)
    return Verdict("cancelled", f"the job was cancelled (SIGTERM; Slurm says {job.state})")
