"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give one data folder to the whole session, so that curves are made once."""
    return tmp_path_factory.mktemp("data")
