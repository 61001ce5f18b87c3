"""``hvdscale run`` inside a real allocation, its ranks started by ``srun``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.slurm import jobs
from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.jobs import PYTHON, ROOT, Job

SWEEP = """\
workload: {{name: stress_strain, samples: 2000}}
engine: {engine}
backend: {backend}
launcher: srun
placement: {placement}
batch_size: 20
cores_per_rank: 1
measure: {{warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, timeout_s: 120}}
base: null
"""
POINTS = {
    "none": {"engine": "none", "backend": "null", "placement": "1x1"},
    "ddp": {"engine": "ddp", "backend": "gloo", "placement": "1x2"},
    "horovod": {"engine": "horovod", "backend": "mpi", "placement": "1x2"},
}
#: What a step of this Slurm says to an MPI program; it may lack PMIx, or speak another one.
MPI_PROGRAM = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"


def submit(cluster: Cluster, folder: Path, data_dir: Path, nodes: int, *lines: str) -> Job:
    """Run ``lines`` as a batch script on ``nodes`` whole nodes and wait for its end."""
    env = {"HVDSCALE_DATA_DIR": str(data_dir)}
    return jobs.wait(cluster, folder, jobs.start(cluster, folder, lines, nodes=nodes, env=env))


def command(folder: Path, name: str) -> str:
    """Write a sweep of one point and return the line that runs it."""
    return jobs.command(folder, name, SWEEP.format(**POINTS[name]))


@pytest.fixture(scope="module")
def mpi_problem(cluster: Cluster) -> str:
    """Say why ``srun --mpi=pmix`` starts no MPI program of this environment; "" if it does."""
    try:
        done = cluster.client(
            *("srun", "--mpi=pmix", "--nodes=1", "--ntasks=2", "--time=1"),
            *(PYTHON, "-c", MPI_PROGRAM),
        )
    except subprocess.TimeoutExpired:
        return "srun --mpi=pmix: no answer in time"
    if done.returncode == 0 and done.stdout.split() == ["2", "2"]:
        return ""
    last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"srun --mpi=pmix: {' / '.join(last[-3:])}"


@pytest.fixture(scope="module")
def job(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, data_dir: Path, mpi_problem: str
) -> Job:
    """Run every point that this Slurm can start, in one allocation of both nodes."""
    folder = tmp_path_factory.mktemp("srun")
    names = [name for name in POINTS if not (name == "horovod" and mpi_problem)]
    return submit(cluster, folder, data_dir, 2, *(command(folder, name) for name in names))


@pytest.mark.parametrize("name", ["none", "ddp", "horovod"])
def test_a_sweep_runs_under_srun(job: Job, name: str, mpi_problem: str) -> None:
    if name == "horovod" and mpi_problem:
        pytest.skip(mpi_problem)
    record = job.record(name)
    ranks = 1 if name == "none" else 2
    assert record.status == "ok", job.output
    assert record.resolved.launcher == "srun"
    assert record.resolved.placement == (ranks,)
    assert record.resolved.hosts == ("n1",)
    assert record.block.allocation.startswith("slurm:")
    assert record.backend is not None
    expected = {"none": None, "ddp": "gloo", "horovod": "mpi"}[name]
    assert (record.backend.requested, record.backend.proven) == (expected, expected)
    assert record.window is not None
    assert len(record.window.rank_wall_s) == ranks
    assert record.window.gradient_allreduce == (ranks > 1)


def test_ranks_of_a_step_have_cores_of_their_own(job: Job) -> None:
    """By SLURM_LOCALID, which is right under srun: two ranks, two different cores."""
    record = job.record("ddp")
    cores = [tuple(rank["cores"]) for rank in record.provenance["ranks"]]
    assert len(cores) == 2
    if record.resolved.bind:
        assert all(len(each) == 1 for each in cores)
        assert cores[0] != cores[1]
    assert record.provenance["environment"]["SLURM_JOB_ID"] in record.block.allocation


def test_a_record_under_srun_is_done(
    cluster: Cluster, job: Job, tmp_path: Path, data_dir: Path
) -> None:
    """Another allocation finds it, and runs nothing again."""
    line = command(tmp_path, "none").replace(str(tmp_path / "results"), str(job.results))
    again = submit(cluster, tmp_path, data_dir, 2, line)
    assert again.state == "COMPLETED"
    assert "1 done" in again.output


def test_an_allocation_of_one_node(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    job = submit(cluster, tmp_path, data_dir, 1, command(tmp_path, "ddp"))
    assert job.state == "COMPLETED", job.output
    assert job.record("ddp").resolved.hosts == ("n1",)


#: What ``detect_machine`` sees, as JSON.
DETECT = (
    "import json; from harness.detect import detect_machine; m = detect_machine(); "
    "print(json.dumps([[h.name, h.cores, h.slots] for h in m.hosts] + "
    "[m.slurm.job_id, m.slurm.partition, list(m.slurm.mpi_plugins)]))"
)


def test_the_allocation_is_detected(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    job = submit(cluster, tmp_path, data_dir, 2, f"{PYTHON} -c '{DETECT}'")
    first, second, job_id, partition, plugins = json.loads(job.output)
    assert (first, second) == (["n1", 2, 2], ["n2", 2, 2])
    assert job_id.isdecimal()
    assert partition == "main"
    assert {"none", "pmi2"} <= set(plugins)


PLACE = (
    "import os; from harness.ranks import find_place; p = find_place(os.environ); "
    "print(p and (p.launcher, p.rank, p.size, p.local_rank, p.local_size))"
)


def test_a_batch_script_is_no_rank(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    """It has SLURM_PROCID and SLURM_NTASKS, as a task of a step has."""
    job = submit(cluster, tmp_path, data_dir, 1, f"{PYTHON} -c '{PLACE}'")
    assert job.output.strip() == "None"


@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_tasks_of_a_step_know_their_place(cluster: Cluster, plugin: str) -> None:
    """Three tasks on two nodes; pmi2 adds PMI_RANK, which is not mpirun's."""
    done = cluster.client(
        *("srun", f"--mpi={plugin}", "--nodes=2", "--ntasks=3", "--time=1", f"--chdir={ROOT}"),
        *(PYTHON, "-c", PLACE),
    )
    assert sorted(done.stdout.splitlines()) == [
        "('srun', 0, 3, 0, 2)",
        "('srun', 1, 3, 1, 2)",
        "('srun', 2, 3, 0, 1)",
    ], done.stderr


def test_collectives_are_compared_under_srun(
    cluster: Cluster, tmp_path: Path, mpi_problem: str
) -> None:
    if mpi_problem:
        pytest.skip(mpi_problem)
    done = cluster.client(
        *("srun", "--mpi=pmix", "--nodes=1", "--ntasks=2", "--time=3", f"--chdir={ROOT}"),
        *(PYTHON, "-m", "harness", "allreduce", "--sizes", "4K,64K", "--iterations", "3"),
        *("--results", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "horovod, mpi" in done.stdout
    (run,) = (tmp_path / "allreduce").iterdir()
    record = json.loads((run / "record.json").read_text())
    assert record["launcher"] == "srun"
    assert {row["library"] for row in record["rows"]} == {"horovod", "torch", "mpi4py"}
