"""torch alone, on one device."""

from __future__ import annotations

from typing_extensions import override

from harness.engines.alone import AloneEngine
from harness.engines.torch_engine import TorchEngine
from harness.engines.torch_graph import GraphStep
from harness.engines.torch_step import TorchStep
from workloads.api import Parts


class NoneTorch(TorchEngine, AloneEngine):
    """What torch trains without any distribution."""

    @override
    def build(self, parts: Parts, learning_rate: float) -> TorchStep:
        model = parts.model.to(self.device)
        execution = self.config.execution
        kind = GraphStep if execution.graph else TorchStep
        optimiser = self.optimiser(parts, model, learning_rate)
        return self.keep(kind(parts, self.compiled(model), optimiser, execution, self.device))

    @override
    def stop(self) -> None:
        pass
