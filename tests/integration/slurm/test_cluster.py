"""The tests' own cluster: others beside it, and nothing left when whoever made it is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.slurm.cluster import Cluster

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0

#: Starts a cluster with GPUs, says its networks and what a job sees, and waits to be killed.
MAKER = """
import json, sys, time
from pathlib import Path
from tests.integration.slurm.cluster import Cluster
cluster = Cluster(Path(sys.argv[1]), gpus=2)
cluster.start()
seen = cluster.client("srun", "-N2", "--gpus-per-node=2", "printenv", "CUDA_VISIBLE_DEVICES")
print(json.dumps([sorted(cluster.hosts.networks), seen.stdout.split()]), flush=True)
time.sleep(600)
"""


def test_a_cluster_ends_with_its_maker_and_leaves_others_alone(cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory(prefix="hvdscale-slurm-") as name:
        Path(name).chmod(0o755)
        maker = subprocess.Popen(
            [sys.executable, "-c", MAKER, name], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            assert maker.stdout is not None
            networks, seen = json.loads(maker.stdout.readline())
        finally:
            maker.kill()
            maker.communicate()
        made = Cluster(Path(name))
        made.hosts.networks.update(networks)
        assert seen == ["0,1", "0,1"]
        assert len(networks) == 3
        assert not cluster.hosts.networks & set(networks)
        made.stop()  # by then it was: what is younger is not of it
        deadline = time.monotonic() + DEADLINE_S
        while left := made.traces():
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
    assert sorted(cluster.client("srun", "-N2", "hostname").stdout.split()) == ["n1", "n2"]


def test_a_node_that_lost_its_power_comes_back(cluster: Cluster) -> None:
    """What ran there is over, and requeued elsewhere or there: jobs of this cluster are."""
    job_id = cluster.client(
        *("sbatch", "--parsable", "--nodelist=n2", "--output=/dev/null", "--wrap=sleep 300")
    ).stdout.strip()
    cluster.wait_for(job_id, "RUNNING")
    cluster.kill_node("n2")
    try:
        assert cluster.client("ssh", "-o", "ConnectTimeout=1", "n2", "true").returncode == 255
        cluster.wait_for(job_id, "PENDING")
    finally:
        cluster.revive("n2")
    try:
        cluster.hasten(job_id)
        cluster.wait_for(job_id, "RUNNING")
    finally:
        cluster.client("scancel", job_id)
    cluster.wait_for(job_id, "CANCELLED")
    assert cluster.client("ssh", "n2", "hostname").stdout == "n2\n"
