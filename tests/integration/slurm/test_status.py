"""``hvdscale status`` beside a real queue: jobs as a submission has them, doing nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.submit.manifest import Element, manifest_path
from tests.factories import config
from tests.integration.slurm.cluster import CLIENT_S, Cluster
from tests.unit.test_status import FIRST, Study

ROOT = Path(__file__).parents[3]
NAMES = ("runs", "waits", "fails", "cancelled", "never", "held", "lost", "dropped")
CONFIGS = tuple(config("horovod", 2, 10 + at, backend="mpi") for at in range(len(NAMES)))
LABELS = {name: f"point {one.global_batch}" for name, one in zip(NAMES, CONFIGS, strict=True)}


@dataclass
class Queue:
    """Arrays of one submission in a real queue, and the sweep that they are of."""

    cluster: Cluster
    study: Study
    script: Path

    def submit(self, number: int, *points: str, stored: bool = True, **options: Any) -> str:
        """Submit an array whose elements have a point each; its script runs ``sleep`` or fails."""
        elements = [Element(repeat=0, points=(NAMES.index(point),)) for point in points]
        logs = self.study.folder / "slurm" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        flags = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
        done = self.cluster.client(
            *("sbatch", "--parsable", f"--array=0-{len(points) - 1}", "--time=5", *flags),
            *("--job-name=study-1x2", f"--output={logs}/%x-%A_%a.out"),
            *(f"--comment=hvdscale:{FIRST}:{number}", str(self.script)),
            *("7" if points == ("fails",) else "sleep",),
        )
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        self.study.submit(job=job if stored else None, elements=elements, number=number)
        return job

    def argv(self, *flags: str) -> tuple[str, ...]:
        results = str(self.study.folder.parent)
        return (sys.executable, "-m", "harness", "status", "study", "--results", results, *flags)

    def status(self, *flags: str) -> tuple[int, str]:
        """Return exit code and output of the command on the cluster's head."""
        done = self.cluster.client(*self.argv(*flags), cwd=ROOT)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, done.stdout

    def launches(self) -> dict[str, dict[str, str]]:
        """Return the launch of each point, as JSON has it, by the names of this file."""
        (row,) = json.loads(self.status("--json")[1])
        found = {point["label"]: point["launches"][0] for point in row["points"]}
        return {name: found[label] for name, label in LABELS.items()}

    def wait_for_reason(self, job_id: str, reason: str) -> None:
        deadline = time.monotonic() + CLIENT_S
        while (
            said := self.cluster.client("squeue", "-h", "-o", "%r", "-j", job_id).stdout.strip()
        ) != reason:
            assert time.monotonic() < deadline, f"job {job_id} waits for {said}, not {reason}"
            time.sleep(0.1)


@pytest.fixture
def queue(cluster: Cluster, tmp_path: Path) -> Queue:
    script = tmp_path / "job.sh"
    script.write_text(
        '#!/bin/sh\n[ "$1" = sleep ] && exec sleep 600\necho no such module\nexit $1\n'
    )
    return Queue(cluster, Study(tmp_path / "results" / "study", CONFIGS, 1).plan(), script)


def test_what_the_queue_says(queue: Queue) -> None:
    """One look at a queue that has everything; then, when all is cancelled, another."""
    cluster = queue.cluster
    fails = queue.submit(0, "fails")
    cancelled = queue.submit(1, "cancelled")
    cluster.wait_for(fails, "FAILED")
    cluster.wait_for(cancelled, "RUNNING")
    cluster.client("scancel", cancelled)
    cluster.wait_for(cancelled, "CANCELLED")
    whole: dict[str, Any] = {"nodes": "2", "exclusive": ""}
    runs = queue.submit(2, "runs", "waits", **whole)
    try:
        never = queue.submit(3, "never", dependency=f"afterok:{fails}")
        dropped = queue.submit(
            6, "dropped", dependency=f"afterok:{fails}", **{"kill-on-invalid-dep": "yes"}
        )
        cluster.wait_for(dropped, "CANCELLED")
        held = queue.submit(4, "held", hold="")
        lost = queue.submit(5, "lost", stored=False, **whole)
        cluster.wait_for(f"{runs}_0", "RUNNING")
        queue.wait_for_reason(f"{never}_0", "DependencyNeverSatisfied")
        found = queue.launches()
        code, text = queue.status()
    finally:
        cluster.client("scancel", "--me")
    assert {name: one["state"] for name, one in found.items()} == {
        "runs": "running",
        "waits": "queued",
        "fails": "failed",
        "cancelled": "failed",
        "never": "never",
        "held": "held",
        "lost": "queued",
        "dropped": "failed",
    }
    assert found["runs"]["job"] == f"{runs}_0"
    assert found["waits"]["why"].split(":")[0] in ("Resources", "Priority")
    assert found["lost"]["job"] == f"{lost}_0"
    assert found["held"]["why"].startswith("JobHeldUser")
    assert f"scancel {never}" in found["never"]["why"]
    assert found["fails"]["why"] == "FAILED: the job's script ended with exit code 7"
    assert found["cancelled"]["why"].startswith("CANCELLED")
    assert "DependencyNeverSatisfied" in found["dropped"]["why"]
    assert code == 1
    assert f"{runs}_0 on n[1-2] since 20" in text
    assert f"study-1x2-{fails}_0.out\n      | no such module\n" in text
    cluster.wait_for(f"{runs}_0", "CANCELLED")
    over = queue.launches()
    assert over["runs"]["state"] == "failed"
    assert over["runs"]["why"].startswith("CANCELLED")
    assert {over[name]["state"] for name in ("waits", "never", "held", "lost")} <= {
        "failed",
        "missing",
    }
    assert f"{held}_0" not in queue.status()[1].partition("failed:")[0]


def test_a_copy_of_the_results_without_slurm(queue: Queue) -> None:
    """As on a laptop: no submission can be looked up, and nothing is taken for lost."""
    queue.study.submit(elements=[Element(repeat=0, points=(0,))])
    assert manifest_path(queue.study.folder, FIRST, 0).exists()
    nowhere = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
    done = subprocess.run(
        queue.argv(), cwd=ROOT, env=nowhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 submitted" in done.stdout.splitlines()[0]
    assert "Slurm was not asked: squeue: " in done.stdout
