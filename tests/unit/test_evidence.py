"""What Horovod reduces and negotiates with, from what it says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines import evidence
from harness.engines.evidence import (
    horovod_backend,
    horovod_controller,
    loaded_libraries,
    mpi_evidence,
    of_launch,
)
from harness.engines.nccl_log import is_nccl
from harness.record import BackendProof


@pytest.mark.parametrize(
    ("device", "nccl", "gloo", "mpi", "build", "backend"),
    [
        ("cpu", False, True, False, None, "gloo"),
        ("cpu", False, False, True, None, "mpi"),
        ("cpu", True, False, True, "nccl", "mpi"),  # an NCCL build reduces CPU tensors elsewhere
        ("cpu", False, False, False, None, None),
        ("cuda", True, False, True, "nccl", "nccl"),
        ("cuda", True, True, False, None, "nccl"),
        ("cuda", False, False, True, "staged", "mpi-host"),
        ("cuda", False, True, False, "staged", "gloo"),
        ("cuda", False, False, True, "mpi-cuda", "mpi"),
        ("cuda", False, True, False, "mpi-cuda", "gloo"),
        ("cuda", False, False, True, None, None),  # somebody's own build: it cannot be known
    ],
)
def test_backend(
    device: str, nccl: bool, gloo: bool, mpi: bool, build: str | None, backend: str | None
) -> None:
    found = horovod_backend(device=device, nccl=nccl, gloo=gloo, mpi=mpi, build=build)
    assert found == backend


@pytest.mark.parametrize(
    ("gloo", "mpi", "named", "controller"),
    [
        (True, False, "mpi", "gloo"),
        (False, True, "gloo", "mpi"),
        (True, True, "MPI", "mpi"),
        (True, True, "", None),
        (False, False, "mpi", None),
    ],
)
def test_controller(gloo: bool, mpi: bool, named: str, controller: str | None) -> None:
    assert horovod_controller(gloo=gloo, mpi=mpi, named=named) == controller


def test_nccl_must_have_spoken() -> None:
    assert is_nccl({"libnccl.so": "/lib/libnccl.so.2", "nccl_version": "2.28.9"})
    assert not is_nccl({"libnccl.so": "/lib/libnccl.so.2"})
    assert not is_nccl({"nccl_version": "2.28.9"})


def test_libraries_of_this_process() -> None:
    found = loaded_libraries("libc.so", "libsurely_not_here")
    assert list(found) == ["libc.so"]
    assert Path(found["libc.so"]).is_file()


def test_without_an_mpi_there_is_no_evidence_of_one() -> None:
    # In a process of its own: in this one another test may have loaded an MPI.
    said = subprocess.run(
        [sys.executable, "-c", f"from {evidence.__name__} import *; print(mpi_evidence())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.strip() == "{}"


def test_what_an_mpi_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"library": "Open MPI v5.0.11", "path": "/lib/libmpi.so.40"}
    monkeypatch.setattr(evidence.mpi, "collect", lambda: found)
    plain = {"libmpi": "/lib/libmpi.so.40", "mpi_library": "Open MPI v5.0.11"}
    assert mpi_evidence() == plain
    monkeypatch.setattr(evidence.mpi, "collect", lambda: found | {"cuda_aware": False})
    assert mpi_evidence() == plain | {"mpi_cuda_aware": "False"}


def _proof(**found: str) -> BackendProof:
    return BackendProof(requested="nccl", proven="nccl", controller="mpi", evidence=found)


def test_a_launch_has_the_connections_of_all_its_ranks() -> None:
    proofs = [
        _proof(nccl_version="2.28.9", nccl_transports="P2P/CUMEM"),
        _proof(nccl_version="2.28.9", nccl_transports="NET/IB/GDRDMA, P2P/CUMEM"),
        _proof(nccl_version="2.28.3", nccl_nodes="2"),
    ]
    found = of_launch(proofs)
    assert found.evidence == {
        "nccl_version": "2.28.9 / 2.28.3",
        "nccl_transports": "NET/IB/GDRDMA, P2P/CUMEM",
        "nccl_nodes": "2",
    }
    assert (found.proven, found.controller) == ("nccl", "mpi")
    assert of_launch(proofs[:1]) == proofs[0]
