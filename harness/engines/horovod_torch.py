"""Horovod for torch: hooks start an all-reduce as each gradient is ready, ``synchronize`` waits.

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
from harness.engines.horovod_common import HorovodEngine
from harness.engines.horovod_torch_step import COMPRESSION, AdasumStep, HorovodStep, findings
from harness.engines.torch_engine import TorchEngine
from workloads.api import Parts


class HorovodTorch(TorchEngine, HorovodEngine):
    """Joins the ranks through Horovod and wraps the workload's own optimiser."""

    hvd = hvd

    @override
    def build(self, parts: Parts, learning_rate: float) -> HorovodStep:
        model = parts.model.to(self.device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        tuning: HorovodTuning = self.config.horovod
        optimiser = hvd.DistributedOptimizer(
            parts.optimiser(model, learning_rate, self.config.execution.fused_optimiser),
            named_parameters=model.named_parameters(),
            compression=COMPRESSION[tuning.compression],
            backward_passes_per_step=self.config.execution.accumulate,
            op=hvd.Adasum if tuning.op == "adasum" else hvd.Average,
            groups=tuning.groups or None,
        )
        # Alone, Horovod makes the usual optimiser of either.
        kind = AdasumStep if tuning.op == "adasum" and hvd.size() > 1 else HorovodStep
        step = kind(parts, self.compiled(model), optimiser, self.config, self.device)
        runtime = active.HorovodRuntime.of(hvd)
        return self.keep(
            step,
            [
                *active.of_horovod(tuning, runtime, os.environ),
                *findings(optimiser, self.config),
            ],
        )

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
