"""A sweep through a real Slurm: submitted, submitted again, cut short, collected."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.record import RunRecord
from harness.store import Store
from harness.submit.manifest import ArrayManifest, Jobs
from tests.integration.slurm.cluster import Cluster

PYTHON = sys.executable
DEADLINE_S = 400.0

SWEEP = """\
name: scale
workload: {name: stress_strain, samples: 2000}
engine: ddp
placement: [1x1, 1x2, 2x1]
batch_size: 20
cores_per_rank: 1
measure: {warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, timeout_s: 120}
include:
  - {placement: 1x1, batch_size: 10}
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
        self.results = folder / "it's 100% \"mine\""
        (folder / "sweep.yaml").write_text(SWEEP)
        (folder / "site.yaml").write_text(SITE.format(data_dir=data_dir))
        self._argv = [PYTHON, "-P", "-m", "harness", "submit", "sweep.yaml"]
        self._argv += ["--site", "site.yaml", "--results", str(self.results)]
        self._cwd = folder

    @property
    def folder(self) -> Path:
        return self.results / "scale"

    def submit(self, *options: str) -> subprocess.CompletedProcess[str]:
        # What this shell has of the harness's own is nothing to the jobs.
        shell = {"HVDSCALE_LAUNCHER": "mpirun", "HVDSCALE_DATA_DIR": "/nowhere"}
        done = self.cluster.client(*self._argv, *options, env=shell, cwd=self._cwd)
        assert done.returncode == 0, done.stderr
        return done

    def submitted(self) -> dict[str, ArrayManifest]:
        """Submit, and return job id → array."""
        ids = self.submit("--parsable").stdout.split()
        (path,) = (
            path
            for path in (self.folder / "slurm").glob("*/jobs.json")
            if Jobs.read(path.parent).collect == ids[-1]
        )
        stored = Jobs.read(path.parent)
        assert [*stored.arrays.values(), stored.collect] == ids
        return {
            job_id: ArrayManifest.read(path.parent / f"array-{number}.json")
            for number, job_id in stored.arrays.items()
        }

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


def points(arrays: dict[str, ArrayManifest]) -> list[str]:
    """Return placement and batch size of all points that arrays are to measure."""
    return sorted(
        f"{array.configs[place].placement} {array.configs[place].batch_size}"
        for array in arrays.values()
        for element in array.elements
        for place in element.points
    )


@pytest.mark.slow
def test_from_submission_to_report(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    user = Campaign(cluster, tmp_path, data_dir)
    blocker = cluster.client(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 900"
    ).stdout.strip()

    first = user.submitted()
    assert points(first) == ["1x1 10", "1x1 20", "1x2 20", "2x1 20"]
    assert [array.placement for array in first.values()] == [(1,), (2,), (1, 1)]
    one, two, _ = first

    # While all of it waits, nothing is submitted twice.
    said = user.submit().stdout
    assert said == "scale: nothing to submit (0 done, 4 queued or running)\n"

    # An element that is cancelled while it waits is submitted again, and nothing else.
    user.cancel(f"{two}_0")
    second = user.submitted()
    assert points(second) == ["1x2 20"]

    # So is the rest of one that is cut short while it runs.
    cluster.client("scancel", blocker)
    user.wait_until(lambda: cluster.state(f"{one}_0") == "RUNNING", f"job {one}_0 runs")
    job = user.job_id(f"{one}_0")
    user.wait_until(lambda: bool(user.records(job)), f"job {one}_0 has a record")
    user.cancel(f"{one}_0")
    kept = user.records(job)
    assert 1 <= len(kept) < 4
    third = user.submitted()
    done = {f"1x1 {r.config.batch_size}" for r in kept if r.config.engine == "ddp"}
    assert points(third) == sorted({"1x1 10", "1x1 20"} - done)

    # The last collection waits for everything, of earlier submissions, too.
    (last,) = {
        found.collect
        for path in (user.folder / "slurm").glob("*/jobs.json")
        if (found := Jobs.read(path.parent)).arrays.keys() and set(third) & {*found.arrays.values()}
    }
    assert last is not None
    user.wait_until(lambda: not user.is_queued(last), f"job {last} collects")
    assert cluster.state(last) == "COMPLETED", user.said()
    assert (user.folder / "report.html").stat().st_size > 10_000
    table = (user.folder / "table.csv").read_text()
    check_records(user, table)
    assert user.submit().stdout == "scale: nothing to submit (4 done, 0 queued or running)\n"


def check_records(user: Campaign, table: str) -> None:
    """Each point once, where it was to be, and its base beside it in its own allocation."""
    found = user.records()
    measured = [r for r in found if r.config.engine == "ddp"]
    assert Counter(f"{r.config.placement} {r.config.batch_size}" for r in measured) == Counter(
        ["1x1 10", "1x1 20", "1x2 20", "2x1 20"]
    ), user.said()
    bases = {(r.block.allocation, r.config.batch_size) for r in found if r.config.engine == "none"}
    for record in measured:
        assert record.resolved.launcher == "srun"  # what the site says, not the user's shell
        hosts = {"1x1": 1, "1x2": 1, "2x1": 2}[str(record.config.placement)]
        assert len(record.resolved.hosts) == hosts
        assert record.run_id in table
        if str(record.config.placement) != "1x1":  # that element was cut short
            assert (record.block.allocation, record.config.batch_size) in bases
    logs = [path.name for path in (user.folder / "slurm" / "logs").iterdir()]
    for placement in ("1x1", "1x2", "2x1"):
        assert any(re.fullmatch(rf"scale-{placement}-\d+_0\.out", name) for name in logs), logs
    state = json.loads((user.folder / "points.json").read_text())
    assert len([point for point in state["points"] if not point["base"]]) == 4
