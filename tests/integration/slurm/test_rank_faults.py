"""A rank on another node that fails, under ``srun``: the cause names it and its node.

A rank that is killed, and a node, are in ``test_life.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import matrix
from tests.integration.slurm import jobs
from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.jobs import Job

SWEEP = """\
workload: {{name: stress_strain, samples: 2000}}
engine: ddp
launcher: srun
placement: 2x1
cores_per_rank: 1
batch_size: {batches}
base: null
measure: {{warmup_steps: 2, window_s: 0.2, min_steps: 3, blocks: 1, timeout_s: 240,
           instruments: []}}
"""
CAUSES = {
    "segv": "rank 1 on n2 ended with signal SIGSEGV: a crash in native code",
    "leave": (
        "rank 1 ended without a word (killed from outside, a crash in native code, or it left with "
        "exit code 0), and rank 0 lost its connection to it"
    ),
}


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Job:
    """Run one sweep, whose last point has a rank that is only late."""
    folder = tmp_path_factory.mktemp("ranks")
    text = SWEEP.format(batches=[matrix.BATCHES[fault] for fault in (*CAUSES, "late")])
    env = matrix.environment(folder, data_dir)
    job_id = jobs.start(cluster, folder, [jobs.command(folder, "faults", text)], env=env)
    ended = jobs.wait(cluster, folder, job_id)
    assert matrix.left_over(folder) == []
    return ended


@pytest.mark.parametrize("fault", CAUSES)
def test_the_cause_names_the_rank(job: Job, fault: str) -> None:
    found = {record.config.rank_batch: record for record in job.records("faults")}
    record = found[matrix.BATCHES[fault]]
    assert record.status == "failed"
    assert record.error is not None
    # Of a rank that crashes srun may tell after that of the other, which lost its peer.
    late = {CAUSES["leave"]} if fault == "segv" else set()
    assert record.error.cause in {CAUSES[fault]} | late
    assert set(record.error.rank_tails) == {"0", "1"}
    assert any(f"now comes {fault}" in line for line in record.error.rank_tails["1"])


def test_the_rest_of_the_sweep_is_done(job: Job) -> None:
    assert job.state == "FAILED"  # exit code 1
    found = {record.config.rank_batch: record.status for record in job.records("faults")}
    late = matrix.BATCHES["late"]
    assert found == {matrix.BATCHES[fault]: "failed" for fault in CAUSES} | {late: "ok"}
