"""torch alone, on one device."""

from __future__ import annotations

from typing_extensions import override

from harness.engines.alone import AloneEngine
from harness.engines.torch_engine import TorchEngine
from harness.engines.torch_step import TorchStep
from workloads.api import Parts


class NoneTorch(TorchEngine, AloneEngine):
    """What torch trains without any distribution."""

    @override
    def build(self, parts: Parts, learning_rate: float) -> TorchStep:
        model = parts.model.to(self.device)
        optimiser = parts.optimiser(model, learning_rate, self.config.execution.fused_optimiser)
        step = TorchStep(parts, self.compiled(model), optimiser, self.config.execution, self.device)
        return self.keep(step)

    @override
    def stop(self) -> None:
        pass
