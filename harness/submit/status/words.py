"""What Slurm says of a job, in plain words. Pure."""

from __future__ import annotations

from harness.slurm import NEVER, WAITING, Job

_DOWN = "nodes that it needs are down, drained or reserved"
_HELD = "; `scontrol release` lets it go"
#: The beginning of a reason, as squeue(1) and sites' limits name them → why a job waits. The first
#: that fits.
_WHY = (
    ("Resources", "waits for nodes to become free"),
    ("Priority", "other jobs are before it in the queue"),
    ("DependencyNeverSatisfied", "what it was to follow did not end as it should have"),
    ("Dependency", "waits for another job to end"),
    ("BeginTime", "waits for its earliest start (after a requeue Slurm sets one)"),
    ("JobArrayTaskLimit", "as many of its array run as may at once"),
    ("JobHeldUser", f"is held by its user{_HELD}"),
    ("JobHeldAdmin", "is held by an administrator of the cluster"),
    ("JobHoldMaxRequeue", f"was requeued too often and is held{_HELD}"),
    ("launch failed requeued held", f"could not be started on its nodes and is held{_HELD}"),
    ("QOSMax", "a limit of its QOS for one user is reached"),
    ("QOS", "a limit of its QOS is reached, or is below what it asks for"),
    ("AssocMax", "a limit of its account for one user is reached"),
    ("Assoc", "a limit of its account is reached, or is below what it asks for"),
    ("MaxMemPerLimit", "asks for more memory than the partition gives"),
    ("ReqNodeNotAvail", _DOWN),
    ("Nodes required for job are DOWN", ""),  # says it itself
    ("NodeDown", _DOWN),
    ("PartitionDown", "its partition is down"),
    ("PartitionInactive", "its partition starts no jobs now"),
    ("PartitionTimeLimit", "asks for more time than the partition gives"),
    ("PartitionNodeLimit", "asks for more or fewer nodes than the partition gives"),
    ("BadConstraints", "no nodes are as it asks for (constraint, GPUs, memory)"),
    ("Reservation", "waits for its reservation to begin"),
    ("Licenses", "waits for a licence"),
    ("InvalidAccount", "its account is not valid here"),
    ("AccountNotAllowed", "its account may not use this partition"),
    ("InvalidQOS", "its QOS is not valid here"),
    ("Cleaning", "was requeued, and its last run is still being cleaned up"),
    ("Prolog", "its nodes are being prepared"),
)

_ENDS = {
    "OUT_OF_MEMORY": "was ended: out of memory; give it more (memory of the site), or fewer ranks "
    "to a node",
    "NODE_FAIL": "ended because a node failed",
    "TIMEOUT": "reached its time limit before this; raise time_per_point of the site",
    "PREEMPTED": "was preempted: its nodes went to another job",
    "CANCELLED": "was cancelled",
    "BOOT_FAIL": "ended because a node did not boot",
    "DEADLINE": "was ended at its deadline",
}


def why_pending(reason: str) -> str:
    """Return why a job waits, in plain words with Slurm's own; an unknown reason as it is."""
    for beginning, words in _WHY:
        if reason.startswith(beginning):
            return f"{reason}: {words}" if words else reason
    return reason or "Slurm has not looked at it yet"


def never_starts(job: Job) -> bool:
    """Say whether a job waits for what cannot be."""
    return job.state in WAITING and job.reason in NEVER


def how_ended(job: Job) -> str:
    """Return how a job that was no success ended, in a line: its state and what that means."""
    on = f" (on {job.nodes})" if job.nodes and job.state in ("NODE_FAIL", "BOOT_FAIL") else ""
    if job.state == "CANCELLED" and job.reason in NEVER:
        return f"{job.state}: its job was cancelled by Slurm: {why_pending(job.reason)}"
    if job.state in _ENDS:
        return f"{job.state}: its job {_ENDS[job.state]}{on}"
    if job.exit_code:
        return f"{job.state}: the job's script ended with exit code {job.exit_code}"
    if job.signal:
        return f"{job.state}: the job's script was ended by signal {job.signal}"
    return f"{job.state}: its job ended without it"
