"""MPI itself through mpi4py: no negotiation, no framework."""

from __future__ import annotations

from typing import Any

import mpi4py
from mpi4py import MPI
from typing_extensions import override

from harness.collectives.api import Library
from harness.collectives.patterns import Buffers
from harness.collectives.record import LibraryFacts
from harness.engines.api import World
from harness.engines.evidence import mpi_evidence
from harness.errors import LaunchError
from harness.provenance import mpi
from harness.record import BackendProof
from harness.spec import Resolved


def unfit(size: int, device: Any, *, beside_horovod: bool) -> str | None:
    """Return why this process's MPI cannot do the others' collectives; None where it can."""
    if MPI.COMM_WORLD.size != size:
        return (
            f"its MPI sees {MPI.COMM_WORLD.size} rank(s) of {size}; srun needs --mpi=pmix or pmi2"
        )
    aware = mpi.collect().get("cuda_aware") if device.type == "cuda" else True
    if not aware:
        says = "does not say that it is" if aware is None else "is not"
        return f"its MPI {says} CUDA-aware, and the buffers are on the GPU"
    if beside_horovod and MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        return "its MPI does not allow Horovod's thread and this one at once"
    return None


def mpi_world(resolved: Resolved) -> World:
    """Return where this rank stands in MPI; LaunchError where that is not what was launched."""
    comm = MPI.COMM_WORLD
    if comm.size != resolved.world_size:
        raise LaunchError(
            f"MPI sees {comm.size} rank(s), {resolved.launcher} started {resolved.world_size}: "
            "use the mpirun of this MPI, or srun --mpi=pmix (pmi2 for MPICH)"
        )
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    return World(comm.rank, comm.size, local.rank, local.size)


def finalise() -> None:
    """Leave MPI, unless Horovod has: a launcher takes a rank that just ends for a failed one."""
    if not MPI.Is_finalized():
        MPI.Finalize()


class MpiControl:
    """Talk between ranks where there is no Horovod."""

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD.Dup()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, on every rank."""
        values: list[Any] = self._comm.allgather(value)
        return values

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._comm.Barrier()


class MpiLibrary(Library):
    """The same tensors: their numpy views on a CPU, themselves to a CUDA-aware MPI."""

    name = "mpi4py"
    lacks: dict[str, str] = {}  # noqa: RUF012 - read only

    def __init__(self, device: Any) -> None:
        # A communicator of its own: Horovod's background thread talks on its own ones meanwhile.
        self._comm = MPI.COMM_WORLD.Dup()
        self._cuda = device.type == "cuda"
        self._device = device

    @override
    def barrier(self) -> None:
        self._comm.Barrier()

    @override
    def facts(self) -> LibraryFacts:
        evidence = mpi_evidence()
        if "mpi_library" not in evidence:
            raise LaunchError("mpi4py is here, but no MPI library is loaded into this process")
        evidence["thread_level"] = str(MPI.Query_thread())
        proof = BackendProof(requested="mpi", proven="mpi", controller=None, evidence=evidence)
        return LibraryFacts(
            name=self.name, proof=proof, versions={"mpi4py": str(mpi4py.__version__)}
        )

    def _view(self, tensor: Any) -> Any:
        return tensor if self._cuda else tensor.numpy()

    def _all_reduce(self, buffers: Buffers) -> Any:
        self._comm.Allreduce(MPI.IN_PLACE, self._view(buffers.send), op=MPI.SUM)
        return self._done(buffers.send)

    def _broadcast(self, buffers: Buffers) -> Any:
        self._comm.Bcast(self._view(buffers.send), root=0)
        return self._done(buffers.send)

    def _all_gather(self, buffers: Buffers) -> Any:
        self._comm.Allgather(self._view(buffers.send), self._view(buffers.receive))
        return self._done(buffers.receive)

    def _reduce_scatter(self, buffers: Buffers) -> Any:
        give, get = self._view(buffers.send), self._view(buffers.receive)
        self._comm.Reduce_scatter_block(give, get, op=MPI.SUM)
        return self._done(buffers.receive)

    def _all_to_all(self, buffers: Buffers) -> Any:
        self._comm.Alltoall(self._view(buffers.send), self._view(buffers.receive))
        return self._done(buffers.receive)

    def _send_recv(self, buffers: Buffers) -> Any:
        after, before = (buffers.rank + 1) % buffers.size, (buffers.rank - 1) % buffers.size
        give, get = self._view(buffers.send), self._view(buffers.receive)
        self._comm.Sendrecv(give, dest=after, recvbuf=get, source=before)
        return self._done(buffers.receive)

    def _done(self, result: Any) -> Any:
        if self._cuda:
            import torch

            torch.cuda.synchronize(self._device)
        return result
