"""Versions of the installed packages that have a part in a measurement."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("hvdscale", "torch", "tensorflow", "keras", "horovod", "mpi4py", "numpy", "pyarrow")


def software() -> dict[str, str]:
    """Return what must be the same on all ranks of a launch: Python's version, and packages'."""
    return {"Python": platform.python_version(), **collect()}


def collect() -> dict[str, str]:
    """Return package → version; of one that is not installed there is no key."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
