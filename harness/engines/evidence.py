"""What a running process can say of the libraries that move its gradients; no framework in here."""

from __future__ import annotations

from collections.abc import Sequence

from harness.provenance import mpi
from harness.provenance.libraries import loaded_libraries
from harness.record import BackendProof

__all__ = [
    "NETWORK_STEMS",
    "horovod_backend",
    "horovod_controller",
    "loaded_libraries",
    "mpi_evidence",
    "of_launch",
]

NETWORK_STEMS = ("libnccl.so", "libucp.so", "libibverbs.so")

#: Evidence that is a set: each rank has its own connections, and a launch has all of them.
_UNITED = "nccl_transports"


def mpi_evidence() -> dict[str, str]:
    """Return the file of the MPI in this process, and what it says of itself; empty without one."""
    found = mpi.collect()
    if not found:
        return {}
    aware = {"mpi_cuda_aware": str(found["cuda_aware"])} if "cuda_aware" in found else {}
    return {"libmpi": str(found["path"]), "mpi_library": str(found["library"]), **aware}


def of_launch(proofs: Sequence[BackendProof]) -> BackendProof:
    """Return rank 0's proof with what other ranks add: all transports, and any other evidence.

    Rank 0 alone need not have a connection to another node. Where the ranks' word differs
    (another NCCL on one node, say), the key has each of them once.
    """
    evidence: dict[str, str] = {}
    for name in dict.fromkeys(name for proof in proofs for name in proof.evidence):
        values = [proof.evidence[name] for proof in proofs if name in proof.evidence]
        if name == _UNITED:
            parts = {part for value in values for part in value.split(", ")}
            evidence[name] = ", ".join(sorted(parts))
        else:
            evidence[name] = " / ".join(dict.fromkeys(values))
    return proofs[0].model_copy(update={"evidence": evidence})


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
