"""What a running process can say of the libraries that move its gradients; no framework in here."""

from __future__ import annotations

import ctypes
import os

#: Whatever a vendor calls its MPI, the loader's name begins with one of these.
MPI_STEMS = ("libmpi.so", "libmpich.so", "libmpi_cray", "libmpi_gnu", "libmpi_intel", "libmpi_")
NETWORK_STEMS = ("libnccl.so", "libucp.so", "libibverbs.so")


def loaded_libraries(*stems: str) -> dict[str, str]:
    """Return the shared libraries mapped into this process whose file name begins with a stem."""
    found: dict[str, str] = {}
    with open(f"/proc/{os.getpid()}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            name = os.path.basename(path)
            for stem in stems:
                if name.startswith(stem):
                    found.setdefault(stem, path)
    return found


def mpi_evidence() -> dict[str, str]:
    """Return the file of the MPI in this process, and what it calls itself; empty without one."""
    for path in loaded_libraries(*MPI_STEMS).values():
        library = ctypes.CDLL(path)
        if hasattr(library, "MPI_Get_library_version"):
            return {"libmpi": path, "mpi_library": _library_version(library)}
    return {}


def _library_version(library: ctypes.CDLL) -> str:
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    # MPI 3.1, section 8.1.1: may be called at any time, even before MPI_Init.
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return " ".join(text.value.decode(errors="replace").split())


def horovod_backend(
    *, device: str, nccl: bool, gloo: bool, mpi: bool, build: str | None
) -> str | None:
    """Return what Horovod reduces a gradient with; None where that cannot be known.

    ``CreateOperationManager`` in Horovod 0.28.1's operations.cc lists the GPU operations that it
    was built with, then Gloo where its context is enabled, then MPI where its context is; the
    first one that is enabled is used. ``build`` is the ``--gpu`` of ``hvdscale build-horovod``:
    whether MPI is handed device pointers is decided there, and Horovod itself keeps no trace.
    """
    if device == "cpu":
        return "gloo" if gloo else "mpi" if mpi else None
    if nccl:
        return "nccl"
    if build not in ("staged", "mpi-cuda"):
        return None
    if build == "mpi-cuda" and mpi:
        return "mpi"
    return "gloo" if gloo else "mpi-host" if mpi else None


def horovod_controller(*, gloo: bool, mpi: bool, named: str) -> str | None:
    """Return what Horovod negotiates over, as its ``InitializeHorovodOnce`` decides it.

    Only one context enabled leaves no choice; with both it was ``HOROVOD_CONTROLLER``, ``named``.
    """
    if gloo != mpi:
        return "gloo" if gloo else "mpi"
    return named.lower() if gloo and named.lower() in ("mpi", "gloo") else None
