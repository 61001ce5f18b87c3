"""``horovodrun`` is told what a proven build has, and asks the frameworks for any other."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.requirements import require_modules

ENVIRONMENT = {
    "PATH": "/a:/b",
    "HVDSCALE_LAUNCH_ID": "0123",
    "HOROVOD_CYCLE_TIME": "1.0",
    "SLURM_JOB_ID": "4711",
    "SLURM_JWT": "hushhush",
    "HVDSCALE_API_TOKEN": "hushhush",
    "AWS_SECRET_ACCESS_KEY": "hushhush",
    "MY_DATABASE": "postgres://me:hushhush@db",
}


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


def test_no_command_of_a_rank_has_a_secret_in_it() -> None:
    """Over Gloo the environment is in the rank's argv, which everybody on the node can read."""
    require_modules("horovod")
    program = f"""
from harness.launch import hvdrun
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
hvdrun.keep_secrets()
(slot,) = get_host_assignments(parse_hosts("n1:1"), 1)
print(hvdrun.gloo_run._slot_info_to_command_fn("python -m harness", {ENVIRONMENT!r})(slot))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    words = done.stdout.split()
    assert "hushhush" not in done.stdout
    assert {"HVDSCALE_LAUNCH_ID=0123", "HOROVOD_CYCLE_TIME=1.0", "SLURM_JOB_ID=4711"} <= {*words}
    assert {"PATH=/a:/b", "PYTHONUNBUFFERED=1", "HOROVOD_RANK=0"} <= {*words}
    assert words[-3:] == ["python", "-m", "harness"]
