"""Ranks on two nodes, started by every launcher that reaches another node.

The nodes are hosts of their own: names, addresses, shared memory and process numbers differ.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from harness.processes import MARKER
from tests import proc
from tests.integration.slurm import jobs
from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.hosts import processes
from tests.integration.slurm.jobs import Job
from tests.requirements import require_modules, require_mpi

# Four ranks share two cores already. With another program beside them, one that yielded all the
# time kept its core from the others for up to 134 s (Linux 6.18): launches met their time limit.
pytestmark = pytest.mark.alone

SWEEP = """\
workload: {{name: stress_strain, samples: 2000}}
engine: {engine}
backend: {backend}
launcher: {launcher}
placement: {placement}
batch_size: 20
cores_per_rank: 1
measure: {{warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, timeout_s: 240}}
base: null
{more}"""
#: Horovod's threads ask each other so rarely because each asking, of four ranks, keeps both cores.
CYCLE = "horovod: {cycle_time_ms: 20}\n"
#: Name → engine, backend, launcher, placement, what the job's shell says.
SWEEPS = {
    "srun": ("horovod", "mpi", "srun", "2x2", ""),
    "gloo": ("horovod", "gloo", "horovodrun", "2x2", ""),
    "horovodrun": ("horovod", "mpi", "horovodrun", "2x2", ""),
    # In an allocation Open MPI starts its daemons by srun; told so, by ssh as anywhere else.
    "ssh": ("horovod", "mpi", "mpirun", "2x2", "PRTE_MCA_plm=ssh"),
    "uneven": ("horovod", "mpi", "mpirun", "2+1", ""),
    "ddp": ("ddp", "gloo", "srun", "2+1", ""),
}
#: Four ranks of two nodes wait on this machine's two cores: let one that waits leave its core.
ENVIRONMENT = {"OMPI_MCA_mpi_yield_when_idle": "1"}
DEADLINE_S = 240.0

T = TypeVar("T")


def command(folder: Path, name: str) -> str:
    engine, backend, launcher, placement, says = SWEEPS[name]
    names = {"engine": engine, "backend": backend, "launcher": launcher, "placement": placement}
    text = SWEEP.format(**names, more=CYCLE if engine == "horovod" else "")
    return f"{says} {jobs.command(folder, name, text)}".strip()


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Job:
    """Run every sweep in one allocation, which hands on nothing of its submitter's environment."""
    require_modules("horovod")
    require_mpi()
    folder = tmp_path_factory.mktemp("nodes")
    lines = [command(folder, name) for name in SWEEPS]
    env = {**ENVIRONMENT, "HVDSCALE_DATA_DIR": str(data_dir)}
    job_id = jobs.start(cluster, folder, lines, "--export=NONE", env=env)
    return jobs.wait(cluster, folder, job_id)


@pytest.mark.parametrize("name", SWEEPS)
def test_ranks_of_two_nodes_train_together(job: Job, name: str) -> None:
    _, backend, launcher, placement, _ = SWEEPS[name]
    counts = {"2x2": (2, 2), "2+1": (2, 1)}[placement]
    record = job.record(name)
    # Only a launch whose ranks end with the same parameters is ok.
    assert record.status == "ok", (record.error, job.output)
    assert (record.resolved.launcher, record.resolved.placement) == (launcher, counts)
    assert record.resolved.hosts == ("n1", "n2")
    assert record.backend is not None
    assert record.backend.proven == backend
    assert record.window is not None
    assert record.window.gradient_allreduce
    assert len(record.window.rank_wall_s) == sum(counts)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_rank_knows_its_node_and_its_place_there(job: Job, name: str) -> None:
    record = job.record(name)
    counts = record.resolved.placement
    assert record.placed is not None
    assert record.placed.hosts == ("n1", "n2")
    assert record.placed.ranks_per_host == counts
    assert record.placed.local_ranks == tuple(rank for n in counts for rank in range(n))
    ranks = record.provenance["ranks"]
    assert [rank["host"] for rank in ranks] == ["n1"] * counts[0] + ["n2"] * counts[1]
    # By its local rank each took a core of its own.
    assert record.resolved.bind
    for host in ("n1", "n2"):
        cores = [tuple(rank["cores"]) for rank in ranks if rank["host"] == host]
        assert all(len(each) == 1 for each in cores)
        assert len(set(cores)) == len(cores)


def test_no_rank_is_on_the_login_node(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    """``salloc`` there starts its command there: all ranks are on a node nevertheless."""
    require_modules("horovod")
    require_mpi()
    names = {"engine": "horovod", "backend": "mpi", "launcher": "mpirun", "placement": "1x2"}
    text = SWEEP.format(**names, more=CYCLE)
    text = text.replace("base: null", "base: {engine: none, placement: 1x1}")
    line = jobs.command(tmp_path, "login", text)
    env = {**ENVIRONMENT, "HVDSCALE_DATA_DIR": str(data_dir), "OMP_NUM_THREADS": "1"}
    options = ("--nodes=2", "--ntasks-per-node=2", "--time=10")
    done = cluster.client("salloc", *options, *shlex.split(line), env=env, cwd=jobs.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    records = Job("", "", tmp_path / "results").records("login")
    assert {record.resolved.launcher for record in records} == {"srun", "mpirun"}
    assert {record.placed.hosts for record in records if record.placed} == {("n1",)}
    assert [len(record.provenance["ranks"]) for record in records if not record.block.is_base] == [
        2
    ]


@pytest.mark.parametrize("name", ["gloo", "horovodrun", "ssh"])
def test_no_rank_is_left_on_the_other_node(
    cluster: Cluster, tmp_path: Path, data_dir: Path, name: str
) -> None:
    """The runner on n1 does not see n2's processes, and one of those can hear nothing any more."""
    env = {**ENVIRONMENT, "HVDSCALE_DATA_DIR": str(data_dir)}
    job_id = jobs.start(cluster, tmp_path, [command(tmp_path, name)], env=env)
    sweep = str(tmp_path / f"{name}.yaml")
    # Its child, between fork and exec, has its command line, too.
    runner, *_ = sorted(
        _until(lambda: [pid for pid, command in processes() if f" run {sweep}" in command])
    )
    pid = _until(lambda: _watched_ranks(cluster, "n2", str(tmp_path)))[0]
    os.kill(pid, signal.SIGSTOP)
    (marker,) = [each for each in proc.environ(pid) if each.startswith(f"{MARKER}=")]
    os.kill(runner, signal.SIGINT)
    ended = jobs.wait(cluster, tmp_path, job_id)
    assert "cancelled: interrupted by the user" in ended.output
    _until(lambda: not [pid for pid, _ in processes() if marker in proc.environ(pid)])


def _watched_ranks(cluster: Cluster, node: str, folder: str) -> list[int]:
    """Return the ranks of a node that have come as far as their watchdog, a thread."""
    of_node = [pid for pid in cluster.hosts.processes(node) if folder in _text(pid, "cmdline")]
    ranks = [pid for pid in of_node if "harness\0bench" in _text(pid, "cmdline")]
    return [pid for pid in ranks if "Threads:\t1\n" not in _text(pid, "status")]


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""  # it has ended


def _until(look: Callable[[], T]) -> T:
    """Return what ``look`` finds as soon as it finds something."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
