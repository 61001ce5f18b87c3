"""What becomes of a submitted sweep when its jobs are cut short, on a real cluster.

Not shown here, because this Slurm keeps no accounts: what ``sacct`` tells of jobs that the
controller has forgotten. That is read from recorded answers in ``tests/unit/test_slurm.py``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.life import DEADLINE_S, Tenant, wait_until

#: Two points of one base.
SHARED = """\
engine: horovod
backend: mpi
launcher: mpirun
placement: 1x2
batch_size: 20
horovod: {cycle_time_ms: [1, 2]}
"""
PAIRS = """\
engine: ddp
placement: 1x2
batch_size: [20, 30]
"""
ALONE = """\
engine: none
batch_size: [20, 30, 40]
base: null
"""
ACROSS = """\
engine: ddp
placement: 2x1
batch_size: [20, 30]
base: null
"""


@pytest.fixture(autouse=True)
def tidy(cluster: Cluster) -> Iterator[None]:
    """Leave the nodes to the next test as they were, whatever this one did."""
    yield
    cluster.client("scancel", "--me")
    wait_until(lambda: not cluster.client("squeue", "-h").stdout, lambda: "a job does not end")


def ends_in(cluster: Cluster, job: str, seconds: float) -> None:
    """Let a job's time limit be that far away. Slurm looks at its clock every 30 s."""
    end = datetime.now() + timedelta(seconds=seconds)
    done = cluster.client("scontrol", "update", f"JobId={job}", f"EndTime={end:%Y-%m-%dT%H:%M:%S}")
    assert done.returncode == 0, done.stderr


def repaired(cluster: Cluster, node: str) -> None:
    """Start a node again, and have Slurm count it as up before it has answered a ping."""
    cluster.revive(node)
    # A node that registers anew is idle at once, but Slurm 22.05 begins no step on it until then.
    cluster.client("scontrol", "update", f"NodeName={node}", "State=IDLE")


def causes(user: Tenant, status: str) -> list[str]:
    return [record.error.cause for record in user.records(status) if record.error is not None]


def test_time_limit(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    """Near, with Slurm's warning, and over, without one."""
    near = Tenant(cluster, tmp_path, data_dir, name="near", sweep=SHARED)
    over = Tenant(cluster, tmp_path, data_dir, name="over", sweep=ALONE, site="options: [--hold]\n")
    (first,) = near.submit()
    held = near.hold(lambda rank: any(r.config.engine == "horovod" for r in near.records("ok")))
    # The script of a submission as somebody hands it in who forgot the warning.
    (waiting,) = over.submit()
    assert over.states() == {"held": 3}
    cluster.client("scancel", waiting)
    (script,) = over.folder.glob("slurm/*/array-0.sh")
    second = cluster.client(
        *("sbatch", "--parsable", "--array=0", "--time=5", "--ntasks-per-node=2", "--exclusive"),
        *(f"--output={over.folder}/slurm/logs/%x-%A_%a.out", str(script)),
    ).stdout.strip()
    over.hold()
    ends_in(cluster, f"{first}_0", 75)  # the warning is 60 s before
    ends_in(cluster, f"{second}_0", 20)
    assert near.wait_for_end(f"{first}_0") == "FAILED"  # it ended itself, with exit code 1
    assert over.wait_for_end(f"{second}_0") == "TIMEOUT"

    (cut,) = near.records("timeout")
    assert cut.run_id == held.run_id
    assert causes(near, "timeout") == [
        "the job's time limit was near; the next submission goes on from here"
    ]
    assert over.counts() == {"timeout": 1}
    assert causes(over, "timeout") == [
        "the job's time limit was over; the next submission goes on from here"
    ]
    before = {record.run_id for record in near.records("ok")}
    assert near.states() == {"done": 1, "failed": 1}
    assert near.whys() == causes(near, "timeout")

    near.run_rest()
    new = [record for record in near.records("ok") if record.run_id not in before]
    assert sorted(record.config.engine for record in new) == ["horovod", "none"]
    (allocation,) = {record.block.allocation for record in new}
    assert allocation != cut.block.allocation


def test_preempted_and_requeued(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    """Both elements go on by themselves, in a new allocation with a base of its own."""
    user = Tenant(cluster, tmp_path, data_dir, name="taken", sweep=PAIRS)
    (array,) = user.submit("--points-per-job", "1")
    requeued = user.hold()
    preempted = user.hold(lambda rank: rank.job != requeued.job)
    assert user.states() == {"running": 2}
    cluster.client("scontrol", "requeue", requeued.job)
    urgent = cluster.client(
        *("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--output=/dev/null"),
        *(f"--nodelist={preempted.node}", "--wrap=sleep 600"),
    ).stdout.strip()
    wait_until(lambda: user.counts() == {"preempted": 2}, user.said)
    assert {record.run_id for record in user.records()} == {requeued.run_id, preempted.run_id}
    assert set(causes(user, "preempted")) == {
        "Slurm took the nodes back, and starts the job again later"
    }
    cluster.wait_for(urgent, "RUNNING")
    assert user.states() == {"queued": 2}
    assert user.submit() == []
    cluster.client("scancel", urgent)
    for rank in (requeued, preempted):
        cluster.hasten(rank.job)
    wait_until(lambda: user.is_over(array), user.said)
    assert user.states() == {"done": 2}, user.said()
    done = user.records("ok")
    assert len(done) == 4
    for record in done:
        assert record.block.allocation.endswith(".r1")
        assert record.slurm is not None
        assert record.slurm["restart_count"] == 1
    allocations = {record.block.allocation for record in done if record.block.is_base}
    assert len(allocations) == 2  # a base in each
    assert user.submit() == []
    assert user.litter() == []


def test_cancelled_and_never_begun(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    """A dependency that fails, one element cancelled, then the array; nothing blocks the rest."""
    user = Tenant(cluster, tmp_path, data_dir, name="ended", sweep=ALONE)
    failed = cluster.client("sbatch", "--parsable", "--output=/dev/null", "--wrap=false")
    before = failed.stdout.strip()
    (never,) = user.submit("--after", f"afterok:{before}")
    wait_until(lambda: user.is_over(never), user.said)
    assert user.counts() == {}
    assert user.states() == {"failed": 3}
    assert all("DependencyNeverSatisfied" in why for why in user.whys())

    (array,) = user.submit("--points-per-job", "1", "--throttle", "1")
    first = user.hold()
    assert user.states() == {"running": 1, "queued": 2}
    cluster.client("scancel", first.job)
    assert user.wait_for_end(first.job) == "CANCELLED"
    second = user.hold(lambda rank: rank.job != first.job)
    cluster.client("scancel", array)
    wait_until(lambda: user.is_over(array), user.said)
    assert list(user.ranks()) == []
    assert {(r.run_id, r.status) for r in user.records()} == {
        (first.run_id, "cancelled"),
        (second.run_id, "cancelled"),
    }
    assert set(causes(user, "cancelled")) == {"the job was cancelled (scancel)"}
    assert user.states() == {"failed": 3}
    user.run_rest()


def test_a_rank_dies_then_a_node(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    """On two nodes: the next launch begins after the one, the job begins again after the other."""
    user = Tenant(cluster, tmp_path, data_dir, name="broken", sweep=ACROSS)
    (array,) = user.submit()
    job = f"{array}_0"
    dead = user.hold(lambda rank: rank.node == "n2")
    dead.send(signal.SIGKILL)
    wait_until(lambda: bool(user.records("failed")), user.said)
    (cause,) = causes(user, "failed")
    assert "n2" in cause or "rank 1" in cause

    user.hold(lambda rank: rank.run_id != dead.run_id)
    assert user.states() == {"failed": 1, "running": 1}
    cluster.kill_node("n2")
    cluster.wait_for(job, "PENDING", timeout_s=DEADLINE_S)
    assert user.states() == {"queued": 2}
    (cause,) = causes(user, "preempted")
    assert cause.endswith("(node n2 failed)")
    repaired(cluster, "n2")
    cluster.hasten(job)

    # The node of the batch script itself: nobody is left who could write a record.
    user.hold(lambda rank: rank.node == "n1")
    cluster.kill_node("n1")
    cluster.wait_for(job, "PENDING", timeout_s=DEADLINE_S)
    repaired(cluster, "n1")
    cluster.hasten(job)
    wait_until(lambda: user.is_over(array), user.said)
    assert user.states() == {"done": 2}, user.said()
    assert {record.block.allocation[-3:] for record in user.records("ok")} == {".r2"}
    assert user.litter() == []


def test_full_disk(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    """Seen from the node whose results folder is a small file system of its own."""
    user = Tenant(
        *(cluster, tmp_path, data_dir),
        name="full",
        sweep=ALONE.replace(", 40", ""),
        site="options: [--nodelist=n1]\n",
        login="n1",
    )
    user.results.mkdir()
    mounted = user.run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(user.results))
    assert mounted.returncode == 0, mounted.stderr
    try:
        (array,) = user.submit()
        held = user.hold(lambda rank: bool(user.records("ok")))
        user.run("dd", "if=/dev/zero", f"of={user.results}/filler", "bs=1k")
        held.send(signal.SIGCONT)
        assert user.wait_for_end(f"{array}_0") == "FAILED"
        said = cluster.client("scontrol", "show", "job", f"{array}_0").stdout
        assert "ExitCode=1:0" in said
        (done,) = user.records()
        assert done.status == "ok"
        assert user.states() == {"done": 1, "failed": 1}
        (log,) = (user.folder / "slurm" / "logs").iterdir()
        errors = [line for line in log.read_text().splitlines() if "error" in line.lower()]
        assert len(errors) == 1
        assert "No space left on device" in errors[0]
        assert "the sweep stopped here, after 1 measured" in errors[0]
        (user.root / user.results.relative_to("/") / "filler").unlink()
        user.run_rest()
    finally:
        user.run("umount", "--lazy", str(user.results))
