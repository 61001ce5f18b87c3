"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.integration.devtools import Page

ROOT = Path(__file__).parents[1]
#: Files that need a private Slurm: one worker has them all, so that there is one cluster, once.
ON_A_CLUSTER = "tests/integration/slurm/"
#: Where tests are that nothing may run beside: they are collected there and nowhere else.
ALONE = ROOT / "tests" / "integration"

# An example that takes long on a busy machine is no failure: no test asserts a speed.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give one data folder to the whole session, so that curves are made once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Give a page of a browser, which is required."""
    from tests.integration.devtools import chromium, require_chromium

    with chromium(require_chromium(), tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Hand out whole files, and all those that need a cluster as if they were one.

    Two clusters at once have twice the ranks on the same cores: launches run out of their time.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class ByFileOrCluster(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return ON_A_CLUSTER if file.startswith(ON_A_CLUSTER) else file

    return ByFileOrCluster(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test marked ``alone`` that ``make test`` would never come to."""
    for item in items:
        if item.get_closest_marker("alone") and not item.path.is_relative_to(ALONE):
            raise pytest.UsageError(f"{item.nodeid} is marked alone: it belongs below {ALONE}")
