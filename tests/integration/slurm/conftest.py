"""One private Slurm for all tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.slurm.cluster import Cluster, missing
from tests.requirements import require


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Start a Slurm of two nodes with two cores each; skip where it is not installed."""
    absent = missing()
    require(
        "slurm",
        not absent,
        f"no Slurm to start, {', '.join(absent)} missing: apt-get install slurm-wlm munge",
    )
    # Not below pytest's own folder: munge wants a path that everybody may walk.
    with tempfile.TemporaryDirectory(prefix="hvdscale-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = Cluster(folder)
        made.start()
        try:
            yield made
        finally:
            made.stop()
        left = made.processes()
    assert left == [], f"processes of the test's Slurm outlived it: {left}"
