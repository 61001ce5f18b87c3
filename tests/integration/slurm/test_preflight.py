"""``hvdscale preflight`` on two nodes: what is planted is named, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.submit.preflight.record import Preflight, Way, read_preflight
from tests.integration.slurm.cluster import Cluster

ROOT = Path(__file__).parents[3]
#: As the command does it in an allocation, with less time for the nodes' speeds.
PROGRAM = """\
import sys
from pathlib import Path
from harness.config import load_sweep
from harness.detect import detect_machine
from harness.submit.preflight.plan import Limits
from harness.submit.preflight.run import run_preflight
sweep, short = load_sweep("campaign.yaml"), Limits(blocks=5, block_s=0.1)
done = run_preflight(detect_machine(), Path("results"), sweep=sweep, limits=short)
sys.exit(done.record.exit_code)
"""
SWEEP = """\
name: campaign
workload: {name: stress_strain, samples: 2000}
engine: none
batch_size: 20
"""
SITE = """\
name: here
nodes: 2
cpus_per_node: 2
partition: main
launcher: srun
environment: {{OMP_NUM_THREADS: "1"}}
data_dir: {data_dir}
"""
RATE_BITS_PER_S = 200_000_000
#: Two nodes share this machine's cores with whatever else runs on it: their speeds may differ.
OF_THE_MACHINE = {"slow-node", "busy", "one-way", "throttled"}


def environment(*path: Path) -> dict[str, str]:
    """Return what a user's shell has; ``path`` goes first for Python."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))),
    }


def preflight(
    cluster: Cluster, folder: Path, data_dir: Path, path: Path
) -> subprocess.CompletedProcess[str]:
    """Run it on the head, in an allocation of both nodes; its results go below ``folder``."""
    (folder / "campaign.yaml").write_text(SWEEP)
    return cluster.client(
        *("salloc", "--nodes=2", "--ntasks-per-node=2", "--time=10"),
        *(sys.executable, "-c", PROGRAM),
        env=environment(path) | {"HVDSCALE_DATA_DIR": str(data_dir)},
        cwd=folder,
    )


def kept(folder: Path) -> Preflight:
    """Return the only record of a folder."""
    (path,) = folder.glob("*.json")
    return read_preflight(path)


def link(record: Preflight, library: str) -> list[Way]:
    """Return both directions of the link, of all looks."""
    return [way for way in record.links if way.library == library]


@contextmanager
def slowed(cluster: Cluster) -> Iterator[None]:
    cluster.slow(RATE_BITS_PER_S)
    try:
        yield
    finally:
        cluster.fast()


def only_on(node: str, folder: Path, lines: str) -> Path:
    """Return a folder for PYTHONPATH that does ``lines`` when Python starts on one node."""
    folder.mkdir()
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    (folder / "sitecustomize.py").write_text(
        f"import os, socket, sys\nif socket.gethostname() == {node!r}:\n{body}"
    )
    return folder


def test_two_good_nodes_by_a_job(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "campaign.yaml").write_text(SWEEP)
    (tmp_path / "site.yaml").write_text(SITE.format(data_dir=data_dir))
    argv = ("preflight", "campaign.yaml", "--site", "site.yaml", "--nodes", "2", "--json")
    sent = cluster.client(
        *(sys.executable, "-P", "-m", "harness", *argv, "--results", "its results"),
        env=environment(),
        cwd=tmp_path,
    )
    assert sent.returncode == 0, sent.stderr
    job = json.loads(sent.stdout)
    state = cluster.wait_for(job["job"], "COMPLETED", "FAILED")
    said = Path(job["log"]).read_text()
    folder = tmp_path / "its results" / "campaign" / "preflight"
    assert list(folder.glob("*.json")), said
    record = kept(folder)
    # A link that looked slow twice was so; what is named after one look is a fault.
    twice = {"slow-link"} if any(way.look for way in record.links) else set()
    assert {one.kind for one in record.findings} <= OF_THE_MACHINE | twice, said
    assert state == ("FAILED" if record.findings else "COMPLETED")
    # No logs where nothing failed, but the job's own, with its script.
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".out", ".sh"]
    # The workload of the sweep, on each node.
    assert (record.config.workload.options, record.config.batch_size) == ({"samples": 2000}, 20)
    assert [one.node for one in record.nodes] == ["n1", "n2"]
    assert all(one.samples_per_s is not None for one in record.nodes)
    assert [one.interface for one in record.nodes] == [
        f"eth0 {cluster.hosts.address(name)}" for name in ("n1", "n2")
    ]
    for name in ("n1", "n2"):
        assert f"eth0 {cluster.hosts.address(name)}" in said
    # The link, by all that gradients could take here, both ways in each look: what looks slow on
    # these two cores is measured a second time.
    both = Counter([("n1", "n2"), ("n2", "n1")])
    ends = Counter((way.source, way.target) for way in link(record, "gloo"))
    assert ends in (both, both + both)
    assert all(way.transfer_s and way.round_trip_s for way in link(record, "gloo"))
    assert "n1–n2" in said
    if link(record, "mpi"):
        assert record.transports["mpi"]["btl"] == "tcp"
    else:
        assert any(text.startswith("mpi: ") for text in record.absent)


def test_a_slow_link_and_other_software_on_a_node(
    cluster: Cluster, tmp_path: Path, data_dir: Path
) -> None:
    old = tmp_path / "old" / "numpy-0.1.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
    lines = f"sys.path.insert(0, {str(old.parent)!r})\nos.environ['NCCL_ALGO'] = 'Tree'"
    path = only_on("n2", tmp_path / "path", lines)
    with slowed(cluster):
        done = preflight(cluster, tmp_path, data_dir, path)
    assert done.returncode == 1, done.stdout + done.stderr
    record = kept(tmp_path / "results" / "campaign" / "preflight")
    for library in {way.library for way in record.links}:
        for way in link(record, library):
            # Never faster than planted; how much slower is the two cores' affair.
            assert 0 < 8 * way.bytes_per_s < 260e6, way
    found = {one.kind: one for one in record.findings if one.kind not in OF_THE_MACHINE}
    assert set(found) == {"slow-link", "unlike"}
    assert found["slow-link"].nodes == ("n1", "n2")
    assert "the link n1–n2 is slow: gloo has " in found["slow-link"].text
    unlike = [one.text for one in record.findings if one.kind == "unlike"]
    assert len(unlike) == 2
    assert unlike[0] == "$NCCL_ALGO differs: absent on n1, Tree on n2"
    assert unlike[1].endswith(" on n1, 0.1 on n2")
    assert unlike[1].startswith("numpy differs: ")


def test_a_node_whose_torch_is_broken(cluster: Cluster, tmp_path: Path, data_dir: Path) -> None:
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libgone.so: cannot open')\n")
    path = only_on("n2", tmp_path / "path", f"sys.path.insert(0, {str(broken.parent)!r})")
    done = preflight(cluster, tmp_path, data_dir, path)
    assert done.returncode == 1, done.stdout + done.stderr
    folder = tmp_path / "results" / "campaign" / "preflight"
    record = kept(folder)
    (dead,) = (one for one in record.findings if one.kind == "dead-node")
    assert dead.nodes == ("n2",)
    assert dead.text.startswith("n2 failed: training on device 0 ended with 1; its last line: ")
    assert "libgone.so: cannot open" in dead.text
    # The other node was measured all the same, the logs are kept, and it is said what was not.
    assert record.nodes[0].samples_per_s is not None
    assert record.absent == ("links: there are no two nodes left to measure them between",)
    assert list(folder.glob("*/speed-0/*.log"))
    # It was told not to wait.
    assert list(folder.glob("*/speed-0/ready-1-0"))
