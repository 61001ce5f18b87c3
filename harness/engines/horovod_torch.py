"""Horovod for torch: hooks start an all-reduce as each gradient is ready, ``synchronize`` waits.

Read against Horovod 0.28.1's ``horovod/torch/optimizer.py`` and ``horovod/common/operations.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import horovod
import horovod.torch as hvd
from typing_extensions import override

from harness.config.models import HorovodTuning
from harness.engines import horovod_common
from harness.engines.api import World
from harness.engines.torch_engine import TorchEngine
from harness.engines.torch_step import TorchStep
from harness.record import BackendProof
from workloads.api import Parts

_COMPRESSION = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
}


class HorovodStep(TorchStep):
    """The eager step with Horovod's optimiser; the wait is apart from the update."""

    def __init__(self, parts: Parts, model: Any, optimiser: Any, engine: HorovodTorch) -> None:
        super().__init__(parts, model, optimiser, engine.config.execution, engine.device)
        if engine.config.horovod.compression == "fp16":
            self.wire_bytes = self.gradient_bytes // 2
        # At size 1 Horovod registers no hooks, so nothing is reduced.
        self.gradient_allreduce = hvd.size() > 1
        self._passes = engine.config.execution.accumulate
        if self.gradient_allreduce:
            self._count_what_is_reduced()

    def _count_what_is_reduced(self) -> None:
        """Every all-reduce that Horovod starts goes through one of these two; count its bytes."""
        one = self.optimiser._allreduce_grad_async
        group = self.optimiser._grouped_allreduce_grad_async

        def counted_one(parameter: Any) -> Any:
            self._reduced_bytes += parameter.nbytes
            return one(parameter)

        def counted_group(parameters: Any) -> Any:
            self._reduced_bytes += sum(parameter.nbytes for parameter in parameters)
            return group(parameters)

        self.optimiser._allreduce_grad_async = counted_one
        self.optimiser._grouped_allreduce_grad_async = counted_group

    def _differentiate(self, inputs: Any, targets: Any, mark: Any, sync: bool) -> Any:
        if sync or not self.gradient_allreduce:
            return super()._differentiate(inputs, targets, mark, sync)
        # Hooks cannot be taken off, but one pass more than will come keeps them waiting.
        self.optimiser.set_backward_passes_per_step(self._passes + 1)
        try:
            return super()._differentiate(inputs, targets, mark, sync)
        finally:
            self.optimiser.set_backward_passes_per_step(self._passes)

    def _synchronise(self, sync: bool) -> None:
        if not self.gradient_allreduce:
            return
        if sync:
            self.optimiser.synchronize()
            self._reduced_steps += 1
        else:
            # Place holders of all-reduces that were never started; zero_grad refuses to see them.
            self.optimiser._handles.clear()

    def _update(self) -> None:
        if not self.gradient_allreduce:
            self.optimiser.step()
            return
        with self.optimiser.skip_synchronize():
            self.optimiser.step()


class HorovodTorch(TorchEngine):
    """Joins the ranks through Horovod and wraps the workload's own optimiser."""

    name = "horovod"

    @override
    def start(self) -> World:
        world = horovod_common.join(hvd, self.resolved)
        self.prepare_device(world.local_rank)
        return world

    @override
    def build(self, parts: Parts, learning_rate: float) -> HorovodStep:
        model = parts.model.to(self.device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        tuning: HorovodTuning = self.config.horovod
        optimiser = hvd.DistributedOptimizer(
            parts.optimiser(model, learning_rate, self.config.execution.fused_optimiser),
            named_parameters=model.named_parameters(),
            compression=_COMPRESSION[tuning.compression],
            backward_passes_per_step=self.config.execution.accumulate,
            groups=tuning.groups or None,
        )
        return HorovodStep(parts, model, optimiser, self)

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
    def proof(self) -> BackendProof:
        return horovod_common.prove(hvd, self.resolved)

    @override
    def start_timeline(self, path: Path) -> None:
        horovod_common.start_timeline(hvd, path)

    @override
    def stop_timeline(self) -> None:
        horovod_common.stop_timeline(hvd)

    @override
    def versions(self) -> Mapping[str, str]:
        return {**super().versions(), "horovod": str(horovod.__version__)}

    @override
    def stop(self) -> None:
        hvd.shutdown()
