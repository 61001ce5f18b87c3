"""Horovod's collectives, as a program calls them: negotiated in its cycle, by name."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from typing_extensions import override

from harness.collectives.api import Library
from harness.collectives.patterns import Buffers
from harness.collectives.record import LibraryFacts
from harness.engines.api import Engine
from harness.measure import gate


class HorovodLibrary(Library):
    """Read against Horovod 0.28.1's ``horovod/torch/mpi_ops.py``.

    Its all-gather, reduce-scatter and all-to-all allocate their result, in the timed part: there is
    no other way to call them.
    """

    name = "horovod"
    lacks = {"send_recv": "Horovod has no send and receive"}  # noqa: RUF012 - read only

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine, self._device = engine, device

    @override
    def barrier(self) -> None:
        hvd.barrier()

    @override
    def facts(self) -> LibraryFacts:
        proof = self._engine.proof()
        gate.check_backend([proof], self._engine.resolved)
        return LibraryFacts(name=self.name, proof=proof, versions=dict(self._engine.versions()))

    def _all_reduce(self, buffers: Buffers) -> Any:
        return self._done(hvd.allreduce_(buffers.send, op=hvd.Sum, name=_name(buffers)))

    def _broadcast(self, buffers: Buffers) -> Any:
        return self._done(hvd.broadcast_(buffers.send, root_rank=0, name=_name(buffers)))

    def _all_gather(self, buffers: Buffers) -> Any:
        return self._done(hvd.allgather(buffers.send, name=_name(buffers)))

    def _reduce_scatter(self, buffers: Buffers) -> Any:
        return self._done(hvd.reducescatter(buffers.send, op=hvd.Sum, name=_name(buffers)))

    def _all_to_all(self, buffers: Buffers) -> Any:
        return self._done(hvd.alltoall(buffers.send, name=_name(buffers)))

    def _done(self, result: Any) -> Any:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return result


def _name(buffers: Buffers) -> str:
    """One name a size: Horovod's cache of responses knows a tensor by its name and shape."""
    return f"hvdscale.{buffers.collective}.{buffers.bytes}"
