"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# An example that takes long on a busy machine is no failure: no test asserts a speed.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give one data folder to the whole session, so that curves are made once."""
    return tmp_path_factory.mktemp("data")
