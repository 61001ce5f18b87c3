"""System parts that a test cannot do without: missing, they skip it, unless they are required."""

from __future__ import annotations

import os

import pytest


def require(name: str, present: bool, reason: str) -> None:
    """Skip the test (or what a fixture serves) with ``reason`` where ``present`` is false.

    ``HVDSCALE_REQUIRE`` is a list of names, "slurm,mpi": where it has ``name``, the skip is a
    failure. Continuous integration sets it, so that nothing is left out there unnoticed.
    """
    if present:
        return
    required = {part.strip() for part in os.environ.get("HVDSCALE_REQUIRE", "").split(",")}
    if name in required:
        pytest.fail(f"{reason} (HVDSCALE_REQUIRE has {name})", pytrace=False)
    pytest.skip(reason)
