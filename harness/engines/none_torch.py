"""No distribution: one device, the honest base."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from harness.engines.api import World
from harness.engines.torch_engine import TorchEngine
from harness.engines.torch_step import TorchStep
from harness.record import BackendProof
from workloads.api import Parts


class NoneTorch(TorchEngine):
    """torch alone; collectives over one rank are the identity."""

    name = "none"

    @override
    def start(self) -> World:
        self.prepare_device(0, 0)
        return World(rank=0, size=1, local_rank=0, local_size=1)

    @override
    def build(self, parts: Parts, learning_rate: float) -> TorchStep:
        model = parts.model.to(self.device)
        optimiser = parts.optimiser(model, learning_rate, self.config.execution.fused_optimiser)
        step = TorchStep(parts, self.compiled(model), optimiser, self.config.execution, self.device)
        return self.keep(step)

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

    @override
    def stop(self) -> None:
        pass
