"""``horovodrun`` is told what a proven build has, and asks the frameworks for any other."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.requirements import require_modules


@pytest.mark.parametrize(
    ("marker", "asked"),
    [
        ({"proven": True, "mpi": {"flavour": "openmpi"}}, []),
        ({"proven": True, "mpi": None}, []),
        ({"proven": False, "mpi": {"flavour": "openmpi"}}, ["gloo", "mpi"]),
        ({}, ["gloo", "mpi"]),
    ],
)
def test_only_a_proven_build_is_believed(marker: dict[str, Any], asked: list[str]) -> None:
    require_modules("horovod")
    program = f"""
from harness.launch import hvdrun
asked = []
hvdrun.launch.gloo_built = lambda verbose=False: asked.append("gloo") or True
hvdrun.launch.mpi_built = lambda verbose=False: asked.append("mpi") or True
hvdrun.read_build_marker = lambda: {marker!r}
hvdrun.answer_from_marker()
print([hvdrun.launch.gloo_built(), hvdrun.launch.mpi_built()], asked)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    mpi = bool(asked) or marker["mpi"] is not None
    assert done.stdout.strip() == f"{[True, mpi]} {asked}"
