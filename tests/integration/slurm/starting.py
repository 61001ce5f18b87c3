"""A private Slurm for some tests, and nothing of it afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.slurm import hosts
from tests.integration.slurm.cluster import Cluster, missing
from tests.requirements import require

ROOT = Path(__file__).parents[3]


@contextmanager
def started(
    tmp_path_factory: pytest.TempPathFactory, *, gpus: int = 0, more: str = ""
) -> Iterator[Cluster]:
    """Give a Slurm of two nodes with two cores each; skip where it cannot be made.

    ``gpus`` and ``more`` as of ``Cluster``. AssertionError where it leaves anything behind.
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
        shared = (ROOT, tmp_path_factory.getbasetemp())
        made = Cluster(folder, gpus=gpus, shared=shared, more=more)
        made.start()
        try:
            yield made
        finally:
            made.stop()
            left = made.traces()
    assert left == [], f"what a test's Slurm left behind: {left}"
