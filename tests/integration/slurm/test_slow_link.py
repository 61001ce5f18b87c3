"""A link between two nodes is made slow: that is found as transfer, and seen where a node is added.

The same point before and after, through the whole program in real allocations.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from harness.analysis.plots import draw
from harness.analysis.results import load_results
from harness.store import Store
from tests.integration.slurm import jobs
from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.jobs import Job
from tests.requirements import require_modules

pytestmark = pytest.mark.alone

PHASES = ("data_s", "forward_s", "backward_s", "transfer_s", "wait_s", "update_s")
#: Of each sweep, what it measures: one point before, and after with what a curve needs.
POINTS = {
    "free": "placement: 2x2\nbase: null\n",
    "slow": "placement: [1x2, 2x2]\nbase: {engine: none, placement: 1x1}\n",
}
SWEEP = """\
workload: {name: stress_strain, samples: 2000}
engine: horovod
backend: gloo
batch_size: 20
cores_per_rank: 1
measure:
  {warmup_steps: 3, window_s: 0.5, min_steps: 40, blocks: 1, timeout_s: 240, instruments: [phases]}
"""
RATE_BITS_PER_S = 200_000_000
GRADIENT_BYTES = 613_764
#: A ring of 4 ranks passes 2 · 3/4 of the bytes over each of its links, one each way between nodes.
ADDED_S = 8 * 1.5 * GRADIENT_BYTES / RATE_BITS_PER_S


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Job:
    require_modules("horovod")
    folder = tmp_path_factory.mktemp("link")
    env = {"HVDSCALE_DATA_DIR": str(data_dir)}
    lines = {name: [jobs.command(folder, name, SWEEP + POINTS[name])] for name in POINTS}
    job = jobs.wait(cluster, folder, jobs.start(cluster, folder, lines["free"], env=env))
    assert job.state == "COMPLETED", job.output
    cluster.slow(RATE_BITS_PER_S)
    try:
        job = jobs.wait(cluster, folder, jobs.start(cluster, folder, lines["slow"], env=env))
    finally:
        cluster.fast()
    assert job.state == "COMPLETED", job.output
    return job


def phases(job: Job, name: str) -> dict[str, float]:
    """Return the median over ranks and steps of each phase of a sweep's point on two nodes.

    Not the record's means: one stall of this machine is in those.
    """
    (record,) = (each for each in job.records(name) if each.resolved.placement == (2, 2))
    assert record.phases is not None
    steps = Store.open(job.results / name).read_steps(record.run_id)
    marked = steps.filter(pc.field("instrument") == "phases")
    assert marked.num_rows >= 4 * 20
    mean_s = marked["transfer_s"].to_numpy().mean()
    assert mean_s == pytest.approx(record.phases.transfer_s)
    return {phase: float(np.median(marked[phase].to_numpy())) for phase in PHASES}


def test_a_slow_link_is_transfer_and_nothing_else(job: Job) -> None:
    free, slow = phases(job, "free"), phases(job, "slow")
    added_s = {phase: slow[phase] - free[phase] for phase in PHASES}
    # Some of it hides behind backward; and four ranks on two cores waited for each other before.
    transfer_s = added_s.pop("transfer_s")
    assert transfer_s > 0.5 * ADDED_S
    assert max(added_s.values()) < 0.5 * transfer_s, added_s


def test_the_plot_marks_where_the_second_node_is_added(job: Job) -> None:
    (drawn,) = draw(load_results(job.results / "slow"), ["speedup"])
    lines = [np.asarray(line.get_xdata()) for line in drawn.plot.figure.axes[0].get_lines()]
    upright = [xs[0] for xs in lines if len(xs) == 2 and xs[0] == xs[1]]
    assert upright == [pytest.approx((2 * 4) ** 0.5)]
    assert b"2 nodes \xe2\x86\x92" in drawn.plot.image("svg")
    points = [row for row in drawn.plot.rows if row["row"] == "point"]
    assert [(row["devices"], row["nodes"]) for row in points] == [(1, 1), (2, 1), (4, 2)]
    assert points[1]["efficiency"] > points[2]["efficiency"]
