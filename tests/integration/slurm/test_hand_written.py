"""What users write themselves: a job array of ``slurm/sweep.sbatch``, and ``run`` in ``salloc``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from harness.record import RunRecord
from harness.store import Store
from tests.integration.slurm.cluster import Cluster

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent

SWEEP = """\
name: hand
workload: {name: stress_strain, samples: 2000}
engine: none
batch_size: [10, 20, 30]
cores_per_rank: 1
measure: {warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, timeout_s: 240}
base: null
"""
PAIRED = """\
name: paired
workload: {name: stress_strain, samples: 2000}
engine: ddp
placement: 2x1
batch_size: [10, 20]
cores_per_rank: 1
measure: {warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, timeout_s: 240}
"""


@pytest.fixture
def environ(data_dir: Path) -> dict[str, str]:
    """Return what a user's shell has: the environment of hvdscale is active."""
    import os

    return {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HVDSCALE_DATA_DIR": str(data_dir),
        "OMP_NUM_THREADS": "1",
    }


def records(folder: Path, name: str) -> list[RunRecord]:
    return list(Store.open(folder / "results" / name).records())


def test_an_array_shares_a_sweep_out(
    cluster: Cluster, tmp_path: Path, environ: dict[str, str]
) -> None:
    """The command as README has it; the logs as it says; a second time nothing is left to do."""
    (tmp_path / "hand.yaml").write_text(SWEEP)
    argv = ("sbatch", "--wait", "--array=0-1%2", "--time=5", str(ROOT / "slurm" / "sweep.sbatch"))
    done = cluster.client(*argv, "hand.yaml", env=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = records(tmp_path, "hand")
    assert sorted(record.config.batch_size or 0 for record in found) == [10, 20, 30]
    assert {record.status for record in found} == {"ok"}
    assert len({record.block.allocation for record in found}) == 2
    logs = sorted(path.name for path in tmp_path.glob("*.out"))
    assert [
        bool(re.fullmatch(rf"hvdscale-\d+_{place}\.out", log)) for place, log in enumerate(logs)
    ]
    assert len(logs) == 2
    assert not list((tmp_path / "results" / "hand").glob(".*.lock"))
    again = cluster.client(*argv, "hand.yaml", env=environ, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(records(tmp_path, "hand")) == 3


def test_without_a_sweep_the_script_says_what_to_write(
    cluster: Cluster, tmp_path: Path, environ: dict[str, str]
) -> None:
    script = str(ROOT / "slurm" / "sweep.sbatch")
    done = cluster.client("sbatch", "--wait", "--time=5", script, env=environ, cwd=tmp_path)
    assert done.returncode == 2
    (log,) = tmp_path.glob("hvdscale-*.out")
    assert "name a sweep" in log.read_text()


def test_run_uses_the_nodes_of_an_allocation(
    cluster: Cluster, tmp_path: Path, environ: dict[str, str]
) -> None:
    """``salloc --nodes=2 hvdscale run``: both nodes, a base beside each point, one block."""
    (tmp_path / "paired.yaml").write_text(PAIRED)
    done = cluster.client(
        *("salloc", "--nodes=2", "--ntasks-per-node=2", "--time=5"),
        *("hvdscale", "run", "paired.yaml"),
        env=environ,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(tmp_path, "paired")
    assert {record.status for record in found} == {"ok"}
    points = [record for record in found if record.config.engine == "ddp"]
    assert [record.resolved.hosts for record in points] == [("n1", "n2")] * 2
    assert {record.resolved.launcher for record in points} == {"srun"}
    assert len({record.block.allocation for record in found}) == 1
    assert sum(record.block.is_base for record in found) == 2
