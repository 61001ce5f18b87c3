"""System parts that a test cannot do without: missing, they skip it, unless they are required."""

from __future__ import annotations

import importlib.util
import os

import pytest

from harness.detect import Machine, Mpi, detect_machine


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


def require_modules(*names: str) -> None:
    """Require that every module of ``names`` can be imported; its name is the requirement's."""
    for name in names:
        require(name, importlib.util.find_spec(name) is not None, f"{name} is not installed")


def require_mpi(machine: Machine | None = None) -> Mpi:
    """Return the MPI of ``machine`` (this one by default), which is required."""
    mpi = (machine or detect_machine()).mpi
    require("mpi", mpi is not None, "there is no MPI here")
    assert mpi is not None  # require does not return without it
    return mpi
