"""TensorFlow alone, on one device."""

from __future__ import annotations

from typing_extensions import override

from harness.engines.alone import AloneEngine
from harness.engines.tf_engine import TfEngine
from harness.engines.tf_step import TfStep
from workloads.api import Parts


class NoneTf(TfEngine, AloneEngine):
    """What TensorFlow trains without any distribution."""

    @override
    def build(self, parts: Parts, learning_rate: float) -> TfStep:
        optimiser = self.optimiser(parts, learning_rate)
        return self.keep(TfStep(parts, optimiser, self.config, self.device))
