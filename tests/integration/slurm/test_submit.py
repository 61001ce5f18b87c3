"""A sweep through a real Slurm: submitted, submitted again, cut short, collected."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.config import RunConfig, run_id
from harness.record import RunRecord
from harness.store import Store
from harness.submit.manifest import ArrayManifest, Jobs
from tests.integration.slurm.cluster import Cluster

PYTHON = sys.executable
DEADLINE_S = 400.0

SWEEP = """\
name: scale
workload: {name: stress_strain, samples: 2000}
engine: [none, ddp]
placement: [1x1, 1x2, 2x1]
batch_size: 20
cores_per_rank: 1
measure: {warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, timeout_s: 240}
"""
SITE = """\
name: small
nodes: 2
cpus_per_node: 2
partition: main
launcher: srun
mpi_plugins: [none, pmi2]
environment: {{OMP_NUM_THREADS: "1"}}
data_dir: {data_dir}
"""


class Campaign:
    """One sweep of one user on the cluster's head, in a folder whose name needs quotes."""

    def __init__(self, cluster: Cluster, folder: Path, data_dir: Path) -> None:
        self.cluster = cluster
        self.results = folder / 'it\'s 100% "mine"'
        (folder / "sweep.yaml").write_text(SWEEP)
        (folder / "site.yaml").write_text(SITE.format(data_dir=data_dir))
        self._argv = [PYTHON, "-P", "-m", "harness", "submit", "sweep.yaml"]
        self._argv += ["--site", "site.yaml", "--results", str(self.results)]
        self._cwd = folder

    @property
    def folder(self) -> Path:
        return self.results / "scale"

    def submit(self, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        # What this shell has of the harness's own is nothing to the jobs.
        shell = {"HVDSCALE_LAUNCHER": "mpirun", "HVDSCALE_DATA_DIR": "/nowhere"}
        done = self.cluster.client(*self._argv, *options, env=shell, cwd=self._cwd)
        assert done.returncode == code, done.stderr
        return done

    def submitted(self, *options: str) -> tuple[dict[str, ArrayManifest], str | None]:
        """Submit, and return job id → array, and the job that collects."""
        ids = self.submit("--parsable", *options).stdout.split()
        newest = max(self.folder.glob("slurm/*/jobs.json"), key=lambda path: path.stat().st_mtime)
        jobs = Jobs.read(newest.parent)
        assert [*jobs.arrays.values(), *([jobs.collect] if jobs.collect else [])] == ids
        arrays = {
            job_id: ArrayManifest.read(newest.parent / f"array-{number}.json")
            for number, job_id in jobs.arrays.items()
        }
        return arrays, jobs.collect

    def records(self, job: str = "") -> list[RunRecord]:
        """Return the records that are done, of one job's allocation if it is named."""
        if not self.folder.exists():
            return []
        found = [r for r in Store.open(self.folder).records() if r.status == "ok"]
        return [r for r in found if not job or r.block.allocation == f"slurm:{job}"]

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not ready():
            assert time.monotonic() < deadline, f"{what}\n{self.said()}"
            time.sleep(0.2)

    def said(self) -> str:
        logs = sorted((self.folder / "slurm" / "logs").glob("*"))
        queue = self.cluster.client("squeue", "--all").stdout
        return queue + "".join(f"== {log.name}\n{log.read_text()}" for log in logs)

    def is_queued(self, job: str) -> bool:
        return job in self.cluster.client("squeue", "-h", "-r", "-o", "%i").stdout.split()

    def job_id(self, element: str) -> str:
        """Return the id that one element of an array has for itself."""
        said = self.cluster.client("scontrol", "show", "job", "-o", element).stdout
        match = re.search(r"JobId=(\d+)", said)
        assert match is not None, said
        return match[1]

    def cancel(self, job: str) -> None:
        self.cluster.client("scancel", job)
        self.wait_until(lambda: not self.is_queued(job), f"job {job} was cancelled")


def name(config: RunConfig) -> str:
    return f"{config.engine} {config.placement}"


def points(arrays: dict[str, ArrayManifest]) -> list[str]:
    """Return the names of all points that arrays are to measure."""
    return sorted(
        name(array.configs[place])
        for array in arrays.values()
        for element in array.elements
        for place in element.points
    )


POINTS = ["ddp 1x1", "ddp 1x2", "ddp 2x1", "none 1x1"]


@pytest.mark.slow
def test_from_submission_to_report(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    user = Campaign(cluster, tmp_path, data_dir)
    blocker = cluster.client(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 900"
    ).stdout.strip()

    first, _ = user.submitted("--no-collect")
    assert points(first) == POINTS
    assert [array.placement for array in first.values()] == [(1,), (2,), (1, 1)]
    one, two, _ = first

    # While all of it waits, nothing is submitted twice: not even had the disk lost Slurm's answers.
    (path,) = user.folder.glob("slurm/*/jobs.json")
    stored = Jobs.read(path.parent)
    Jobs().write(path.parent)
    said = user.submit().stdout
    stored.write(path.parent)
    assert (
        said == "scale: nothing to submit (0 done, 4 queued or running, 2 combinations left out)\n"
    )

    # An element that is cancelled while it waits is submitted again, and nothing else.
    user.cancel(f"{two}_0")
    second, _ = user.submitted("--no-collect")
    assert points(second) == ["ddp 1x2"]

    # So is the rest of one that is cut short while it runs.
    cluster.client("scancel", blocker)
    user.wait_until(lambda: cluster.state(f"{one}_0") == "RUNNING", f"job {one}_0 runs")
    job = user.job_id(f"{one}_0")
    user.wait_until(lambda: bool(user.records(job)), f"job {one}_0 has a record")
    user.cancel(f"{one}_0")
    kept = {name(record.config) for record in user.records(job)}
    third, collect = user.submitted()
    assert points(third) == sorted({"ddp 1x1", "none 1x1"} - kept)

    # The collection waits for everything, of earlier submissions, too.
    assert collect is not None
    user.wait_until(lambda: not user.is_queued(collect), f"job {collect} collects")
    assert cluster.state(collect) == "COMPLETED", user.said()
    assert (user.folder / "report.html").stat().st_size > 10_000
    check_records(user)
    assert user.submit().stdout.startswith("scale: nothing to submit (4 done, 0 queued or running,")


def check_records(user: Campaign) -> None:
    """Each point once, where it was to be, and its base beside it in its own allocation."""
    found = user.records()
    table = (user.folder / "table.csv").read_text()
    assert all(record.run_id in table for record in found)
    bases = {record.block.allocation for record in found if record.config.engine == "none"}
    points = [r for r in found if r.run_id == run_id(r.config, 0)]  # bases have ids of their own
    assert sorted(name(record.config) for record in points) == POINTS, user.said()
    for record in points:
        assert record.resolved.launcher == "srun"  # what the site says, not the user's shell
        hosts = 2 if name(record.config) == "ddp 2x1" else 1
        assert len(record.resolved.hosts) == hosts
        if name(record.config) != "ddp 1x1":  # that element was cut short
            assert record.block.allocation in bases
    logs = [path.name for path in (user.folder / "slurm" / "logs").iterdir()]
    for placement in ("1x1", "1x2", "2x1"):
        assert any(re.fullmatch(rf"scale-{placement}-\d+_0\.out", log) for log in logs), logs
    state = json.loads((user.folder / "points.json").read_text())
    assert len(state["points"]) == 4


def test_slurms_own_words_where_it_refuses(
    cluster: Cluster, tmp_path: Path, data_dir: Path
) -> None:
    user = Campaign(cluster, tmp_path, data_dir)
    done = user.submit("--site-set", "partition=nowhere", code=1)
    assert "invalid partition" in done.stderr
    assert "0 of 3 arrays are submitted" in done.stderr
    assert done.stdout == ""
