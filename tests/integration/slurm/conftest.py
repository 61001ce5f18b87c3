"""One private Slurm for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.starting import started


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a Slurm of two nodes with two cores each; skip where it cannot be made.

    Jobs see what tests write below ``tmp_path``, which is on the nodes' common file system.
    """
    with started(tmp_path_factory) as made:
        yield made
