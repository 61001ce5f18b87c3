"""Horovod for torch: hooks start an all-reduce as each gradient is ready, ``synchronize`` waits.

As CUDA graphs a step has no hooks: its gradients are one buffer, reduced between two graphs.

Read against Horovod 0.28.1's ``horovod/torch/optimizer.py`` and ``horovod/common/operations.cc``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import horovod
import horovod.torch as hvd
from typing_extensions import override

from harness.config.models import HorovodTuning
from harness.engines import active
from harness.engines.active import Finding
from harness.engines.horovod_common import HorovodEngine
from harness.engines.horovod_torch_graph import HorovodGraphStep
from harness.engines.horovod_torch_step import COMPRESSION, AdasumStep, HorovodStep, findings
from harness.engines.torch_engine import TorchEngine
from harness.engines.torch_step import TorchStep
from workloads.api import Parts


class HorovodTorch(TorchEngine, HorovodEngine):
    """Joins the ranks through Horovod and wraps the workload's own optimiser."""

    hvd = hvd

    @override
    def build(self, parts: Parts, learning_rate: float) -> TorchStep:
        model = parts.model.to(self.device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimiser = self.optimiser(parts, model, learning_rate)
        make = self._graph_step if self.config.execution.graph else self._eager_step
        step, found = make(parts, model, optimiser)
        knobs = active.of_horovod(self.config.horovod, active.HorovodRuntime.of(hvd), os.environ)
        return self.keep(step, [*knobs, *found])

    def _eager_step(
        self, parts: Parts, model: Any, optimiser: Any
    ) -> tuple[HorovodStep, list[Finding]]:
        tuning: HorovodTuning = self.config.horovod
        wrapped = hvd.DistributedOptimizer(
            optimiser,
            named_parameters=model.named_parameters(),
            compression=COMPRESSION[tuning.compression],
            backward_passes_per_step=self.config.execution.accumulate,
            op=hvd.Adasum if tuning.op == "adasum" else hvd.Average,
            groups=tuning.groups or None,
        )
        # Alone, Horovod makes the usual optimiser of either.
        kind = AdasumStep if tuning.op == "adasum" and hvd.size() > 1 else HorovodStep
        step = kind(parts, self.compiled(model), wrapped, self.config, self.device)
        return step, findings(wrapped, self.config)

    def _graph_step(
        self, parts: Parts, model: Any, optimiser: Any
    ) -> tuple[HorovodGraphStep, list[Finding]]:
        step = HorovodGraphStep(parts, self.compiled(model), optimiser, self.config, self.device)
        return step, step.findings()

    @override
    def allreduce(self, buffer: Any) -> None:
        hvd.allreduce_(buffer, op=hvd.Sum, name="hvdscale.isolated")
        self._wait()

    @override
    def gather(self, value: Any) -> list[Any]:
        gathered: list[Any] = hvd.allgather_object(value, name="hvdscale.gather")
        return gathered

    @override
    def barrier(self) -> None:
        self._wait()
        hvd.barrier()

    @override
    def versions(self) -> Mapping[str, str]:
        return {**super().versions(), "horovod": str(horovod.__version__)}

    @override
    def stop(self) -> None:
        hvd.shutdown()
