"""No distribution: one device, the honest base."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from harness.engines.api import World
from harness.engines.tf_engine import TfEngine
from harness.engines.tf_step import TfStep
from harness.record import BackendProof
from workloads.api import Parts


class NoneTf(TfEngine):
    """TensorFlow alone; collectives over one rank are the identity."""

    name = "none"

    @override
    def start(self) -> World:
        self.prepare_device(0, 0)
        return World(rank=0, size=1, local_rank=0, local_size=1)

    @override
    def build(self, parts: Parts, learning_rate: float) -> TfStep:
        optimiser = self.optimiser(parts, learning_rate)
        return self.keep(TfStep(parts, optimiser, self.config, self.device))

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
