"""torch.distributed without anything over it: its own process group, its own collectives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import override

from harness.collectives import network
from harness.collectives.api import Control, Library
from harness.collectives.definitions import COLLECTIVES
from harness.collectives.patterns import Buffers
from harness.collectives.record import LibraryFacts
from harness.config.models import RunConfig
from harness.engines.api import World
from harness.engines.ddp import Ddp
from harness.measure import gate
from harness.spec import Resolved

_C10D: Any = dist  # TCPStore is documented, and not in its stubs
_TIMEOUT = timedelta(minutes=30)  # of one collective: 1 GiB over a slow link takes minutes
#: The table of backends in torch's documentation: what Gloo does with CUDA tensors.
_GLOO_ON_CUDA = ("all_reduce", "broadcast", "barrier")


def torch_backend(resolved: Resolved) -> str:
    """Return the process group's backend: Horovod's where torch has it, else the device's own."""
    if resolved.device == "cuda" and resolved.backend != "gloo":
        return "nccl"
    return "gloo"


def join(resolved: Resolved, world: World, control: Control, device: torch.device) -> None:
    """Make the default process group among ranks that something else has already joined.

    Rank 0 listens on a port that the system chose, and tells the others where.
    """
    home = network.choose(control)
    store: Any = None
    if world.rank == 0:
        store = _C10D.TCPStore(home.address, 0, world.size, True, wait_for_workers=False)
    place = (home.address, store.port) if store else None
    address, port = control.gather(place)[0]
    if store is None:
        store = _C10D.TCPStore(address, port, world.size, False)
    dist.init_process_group(
        torch_backend(resolved),
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=_TIMEOUT,
        device_id=device if torch_backend(resolved) == "nccl" else None,
    )


class TorchLibrary(Library):
    """The default process group, over the same tensors as the others."""

    name = "torch"

    def __init__(self, config: RunConfig, resolved: Resolved, world: World, device: Any) -> None:
        self._config = config
        self._resolved = resolved.model_copy(
            update={"backend": torch_backend(resolved), "controller": None}
        )
        self._world, self._device = world, device
        gloo_on_cuda = device.type == "cuda" and self._resolved.backend == "gloo"
        self.lacks = {
            name: "torch's Gloo does not do it on CUDA tensors"
            for name in COLLECTIVES
            if gloo_on_cuda and name not in _GLOO_ON_CUDA
        }

    @override
    def barrier(self) -> None:
        if self._resolved.backend == "nccl":
            dist.barrier(device_ids=[self._device.index])
            self._wait()
        else:
            dist.barrier()

    @override
    def facts(self) -> LibraryFacts:
        ddp = Ddp(self._config, self._resolved)
        proof = ddp.proof()
        gate.check_backend([proof], self._resolved)
        ddp.device = self._device
        return LibraryFacts(name=self.name, proof=proof, versions=dict(ddp.versions()))

    def _all_reduce(self, buffers: Buffers) -> Any:
        dist.all_reduce(buffers.send)
        return self._done(buffers.send)

    def _broadcast(self, buffers: Buffers) -> Any:
        dist.broadcast(buffers.send, src=0)
        return self._done(buffers.send)

    def _all_gather(self, buffers: Buffers) -> Any:
        dist.all_gather_into_tensor(buffers.receive, buffers.send)
        return self._done(buffers.receive)

    def _reduce_scatter(self, buffers: Buffers) -> Any:
        dist.reduce_scatter_tensor(buffers.receive, buffers.send)
        return self._done(buffers.receive)

    def _all_to_all(self, buffers: Buffers) -> Any:
        dist.all_to_all_single(buffers.receive, buffers.send)
        return self._done(buffers.receive)

    def _send_recv(self, buffers: Buffers) -> Any:
        rank, size = self._world.rank, self._world.size
        both = [
            dist.P2POp(dist.isend, buffers.send, (rank + 1) % size),
            dist.P2POp(dist.irecv, buffers.receive, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return self._done(buffers.receive)

    def _done(self, result: Any) -> Any:
        self._wait()
        return result

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
