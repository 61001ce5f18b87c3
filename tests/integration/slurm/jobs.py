"""Batch jobs of a test: written, submitted, waited for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.record import RunRecord
from harness.store import Store
from tests.integration.slurm.cluster import Cluster

ROOT = Path(__file__).parents[3]
PYTHON = sys.executable
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@dataclass(frozen=True)
class Job:
    """A batch job that has ended."""

    state: str
    output: str
    results: Path

    def records(self, name: str) -> list[RunRecord]:
        """Return the records of a sweep."""
        return list(Store.open(self.results / name).records())

    def record(self, name: str) -> RunRecord:
        """Return the only record of a sweep."""
        (record,) = self.records(name)
        return record


def start(
    cluster: Cluster,
    folder: Path,
    lines: Sequence[str],
    *options: str,
    nodes: int = 2,
    env: Mapping[str, str] | None = None,
) -> str:
    """Submit ``lines`` as a batch script on ``nodes`` whole nodes; return the job's id.

    ``env`` is exported in the script, because not every job has its submitter's environment.
    """
    exported = {"OMP_NUM_THREADS": "1", **(env or {})}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in exported.items()]
    script = folder / "job.sh"
    script.write_text("\n".join(["#!/bin/bash", *exports, f"cd {ROOT}", *lines, ""]))
    done = cluster.client(
        *("sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=2", "--time=10"),
        *(f"--output={folder / 'job.out'}", *options, str(script)),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait(cluster: Cluster, folder: Path, job_id: str) -> Job:
    """Wait for a job's end; its results are those below ``folder``."""
    state = cluster.wait_for(job_id, *ENDS)
    output = folder / "job.out"
    return Job(state, output.read_text() if output.exists() else "", folder / "results")


def command(folder: Path, name: str, text: str) -> str:
    """Write a sweep and return the line that runs it."""
    (folder / f"{name}.yaml").write_text(f"name: {name}\n{text}")
    argv = [PYTHON, "-m", "harness", "run", str(folder / f"{name}.yaml")]
    return shlex.join([*argv, "--results", str(folder / "results")])
