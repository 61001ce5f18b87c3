"""One rank by itself, whatever the framework: no distribution, the honest base."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from harness.engines.api import Engine, World
from harness.record import BackendProof


class AloneEngine(Engine):
    """Engine ``none``, beside a framework's part: collectives over one rank are the identity."""

    name = "none"

    def prepare_device(self, local_rank: int, rank: int) -> None:
        """Take this rank's device and cores; the framework's part."""
        raise NotImplementedError

    def _wait(self) -> None:
        """Wait for the device; the framework's part."""
        raise NotImplementedError

    @override
    def start(self) -> World:
        self.prepare_device(0, 0)
        return World(rank=0, size=1, local_rank=0, local_size=1)

    @override
    def allreduce(self, buffer: Any) -> None:
        self._wait()

    @override
    def gather(self, value: Any) -> list[Any]:
        return [value]

    @override
    def barrier(self) -> None:
        self._wait()

    @override
    def proof(self) -> BackendProof:
        return BackendProof(requested=None, proven=None, controller=None, evidence={})
