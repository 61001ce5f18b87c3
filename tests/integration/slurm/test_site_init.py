"""A site drafted on a real cluster: its numbers, and that jobs asked for by it find them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.submit.site import time_text
from harness.submit.site_files import find_site
from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.starting import started

ROOT = Path(__file__).parents[3]
#: Beside the two hosts a node of another kind that never comes, and a partition of its own.
MORE = """\
GresTypes=gpu
NodeName=big NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 Gres=gpu:a100:8
PartitionName=drained Nodes=big MaxTime=UNLIMITED MaxNodes=1 State=DRAIN
"""
#: What a job sees of its allocation, as JSON.
SEEN = (
    "import json, os; from harness.detect import detect_machine; m = detect_machine(); "
    "print(json.dumps([m.slurm.partition, [[h.name, h.cores] for h in m.hosts], "
    "int(os.environ['SLURM_GPUS_ON_NODE'])]))"
)
MIXED = "constraint: none, but main has several kinds of nodes, and jobs may get others"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a Slurm of two nodes with two cores and two GPUs, and one with four and eight."""
    with started(tmp_path_factory, gpus=2, more=MORE) as made:
        yield made


def site(cluster: Cluster, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run ``hvdscale site …`` on the head, in ``folder``."""
    env = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config")}
    return cluster.client(sys.executable, "-m", "harness", "site", *argv, env=env, cwd=folder)


def test_a_draft_is_right_and_can_be_used(mixed: Cluster, tmp_path: Path) -> None:
    done = site(mixed, tmp_path, "init", "--partition", "main", "--out", "slurm/sites/mine.yaml")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "slurm" / "sites" / "mine.yaml"
    text = path.read_text()
    assert "# It has several kinds of nodes; this is about the most frequent, 2 of 3." in text
    drafted = find_site(str(path))
    assert (drafted.name, drafted.partition) == ("mine", "main")
    assert (drafted.nodes, drafted.cpus_per_node, drafted.gpus_per_node) == (2, 2, 2)
    assert (drafted.gres, drafted.launcher, drafted.max_array_size) == ("gpu", "srun", 1001)
    assert (drafted.max_time, drafted.time_per_job) == (3600, 3600)
    assert {"pmix", "pmi2"} <= set(drafted.mpi_plugins)

    # By its name, and Slurm agrees but for what the draft leaves to be filled in.
    checked = site(mixed, tmp_path, "show", "mine", "--check")
    assert (checked.returncode, checked.stderr) == (1, f"mine: {MIXED}\n")
    filled = site(mixed, tmp_path, "show", "mine", "--check", "--site-set", "constraint=small")
    assert (filled.returncode, filled.stderr) == (0, "")

    # A job that is asked for as it says sees nodes as it says.
    script = tmp_path / "job.sh"
    script.write_text(f'#!/bin/bash\ncd {ROOT}\n{sys.executable} -c "{SEEN}"\n')
    job = mixed.client(
        *("sbatch", "--wait", f"--partition={drafted.partition}", f"--nodes={drafted.nodes}"),
        *(f"--gres={drafted.gres}:{drafted.gpus_per_node}", "--exclusive"),
        *(f"--mem={drafted.memory}", f"--time={time_text(drafted.time_per_job)}"),
        *(f"--output={tmp_path}/job.out", str(script)),
    )
    assert job.returncode == 0, job.stderr
    partition, nodes, gpus = json.loads((tmp_path / "job.out").read_text())
    assert (partition, gpus) == ("main", drafted.gpus_per_node)
    assert nodes == [["n1", drafted.cpus_per_node], ["n2", drafted.cpus_per_node]]


def test_a_file_is_not_overwritten(mixed: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("nodes: 7\n")
    done = site(mixed, tmp_path, "init", "--partition", "main", "--out", "mine.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "mine.yaml: is there already; remove it, or give another --out" in done.stderr
    assert (tmp_path / "mine.yaml").read_text() == "nodes: 7\n"


def test_which_partition_is_to_be_said(mixed: Cluster, tmp_path: Path) -> None:
    done = site(mixed, tmp_path, "init")
    assert (done.returncode, done.stdout) == (2, "")
    assert "name one with --partition: main (the default), urgent, drained" in done.stderr


def test_a_drained_partition_of_no_limit(mixed: Cluster, tmp_path: Path) -> None:
    done = site(mixed, tmp_path, "init", "--partition", "drained", "--name", "later")
    assert done.returncode == 0, done.stderr
    assert "# The partition takes no jobs now" in done.stdout
    (tmp_path / "later.yaml").write_text(done.stdout)
    drafted = find_site(str(tmp_path / "later.yaml"))
    assert (drafted.name, drafted.nodes, drafted.max_time) == ("later", 1, None)
    assert (drafted.cpus_per_node, drafted.gpus_per_node, drafted.gres) == (4, 8, "gpu:a100")
