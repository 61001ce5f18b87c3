"""One private Slurm for all tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.slurm import hosts
from tests.integration.slurm.cluster import Cluster, missing
from tests.requirements import require

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a Slurm of two nodes with two cores each; skip where it cannot be made.

    Jobs see what tests write below ``tmp_path``, which is on the nodes' common file system.
    """
    absent = missing()
    require(
        "slurm",
        not absent,
        f"no Slurm to start, {', '.join(absent)} missing: apt-get install slurm-wlm munge",
    )
    problem = hosts.missing()
    require("namespaces", not problem, problem)
    # Not below pytest's own folder: munge wants a path that everybody may walk.
    with tempfile.TemporaryDirectory(prefix="hvdscale-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = Cluster(folder, shared=(ROOT, tmp_path_factory.getbasetemp()))
        made.start()
        try:
            yield made
        finally:
            made.stop()
            left = made.traces()
    assert left == [], f"what a test's Slurm left behind: {left}"
