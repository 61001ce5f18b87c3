"""What Horovod reduces and negotiates with, from what it says of itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.engines.evidence import horovod_backend, horovod_controller, loaded_libraries
from harness.engines.nccl_log import is_nccl


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
    assert sys.executable
