"""Horovod for torch: hooks start an all-reduce as each gradient is ready, ``synchronize`` waits.

Read against Horovod 0.28.1's ``horovod/torch/optimizer.py`` and ``horovod/common/operations.cc``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import horovod
import horovod.torch as hvd
import torch
from typing_extensions import override

from harness.config.models import HorovodTuning
from harness.engines.api import World
from harness.engines.nccl_log import own_output, parse_nccl_log
from harness.engines.torch_engine import TorchEngine, loaded_libraries, mpi_library
from harness.engines.torch_step import TorchStep
from harness.errors import LaunchError
from harness.record import BackendProof
from workloads.api import Parts

BUILD_MARKER = "hvdscale_build.json"


class Bf16Compressor(hvd.Compression.none):  # type: ignore[misc]
    """Sends float32 gradients as bfloat16, which keeps their range; Horovod has fp16 only."""

    @staticmethod
    @override
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        if tensor.dtype == torch.float32:
            return tensor.to(torch.bfloat16), tensor.dtype
        return tensor, None

    @staticmethod
    @override
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


_COMPRESSION = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "bf16": Bf16Compressor,
}


class HorovodStep(TorchStep):
    """The eager step with Horovod's optimiser; the wait is apart from the update."""

    def __init__(self, parts: Parts, model: Any, optimiser: Any, engine: HorovodTorch) -> None:
        super().__init__(parts, model, optimiser, engine.config.execution, engine.device)
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

    def _step(self, next_batch: Any, mark: Any, sync: bool) -> Any:
        if sync or not self.gradient_allreduce:
            return super()._step(next_batch, mark, sync)
        # Hooks cannot be taken off, but one pass more than will come keeps them waiting.
        self.optimiser.set_backward_passes_per_step(self._passes + 1)
        try:
            return super()._step(next_batch, mark, sync)
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
        hvd.init()
        wanted = self.resolved.world_size
        if hvd.size() != wanted:
            raise LaunchError(
                f"Horovod sees {hvd.size()} ranks, the config asks for {wanted}: the launcher and "
                "Horovod's controller do not belong together"
            )
        self.prepare_device(hvd.local_rank())
        return World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())

    @override
    def build(self, parts: Parts, learning_rate: float) -> HorovodStep:
        model = parts.model.to(self.device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        tuning: HorovodTuning = self.config.horovod
        optimiser = hvd.DistributedOptimizer(
            parts.optimiser(model, learning_rate),
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
        cuda = self.resolved.device == "cuda"
        proven = active_backend(
            nccl=cuda and bool(hvd.nccl_built()),
            gloo=bool(hvd.gloo_enabled()),
            mpi=bool(hvd.mpi_enabled()),
            cuda=cuda,
            mpi_on_device=cuda and _gpu_allreduce_is_mpi(),
        )
        evidence = {
            "gloo_enabled": str(hvd.gloo_enabled()),
            "mpi_enabled": str(hvd.mpi_enabled()),
            "nccl_built": str(hvd.nccl_built()),
            **loaded_libraries("libmpi.so", "libnccl.so", "libucp.so", "libibverbs.so"),
        }
        if hvd.mpi_enabled():
            evidence["mpi_threads_supported"] = str(hvd.mpi_threads_supported())
            evidence["mpi_library"] = mpi_library(evidence["libmpi.so"])
        if proven == "nccl":
            evidence |= parse_nccl_log(own_output())
        return BackendProof(
            requested=self.resolved.backend,
            proven=proven,
            controller=_active_controller(),
            evidence=evidence,
        )

    @override
    def versions(self) -> Mapping[str, str]:
        return {**super().versions(), "horovod": str(horovod.__version__)}

    @override
    def stop(self) -> None:
        hvd.shutdown()


def active_backend(
    *, nccl: bool, gloo: bool, mpi: bool, cuda: bool, mpi_on_device: bool
) -> str | None:
    """Return what Horovod reduces with: the first enabled operation in its own order.

    ``CreateOperationManager`` in operations.cc lists the GPU operations it was built with, then
    Gloo where its context is enabled, then MPI where its context is; the first one is used.
    """
    if mpi_on_device and mpi:
        return "mpi"
    if nccl:
        return "nccl"
    if gloo:
        return "gloo"
    if mpi:
        return "mpi-host" if cuda else "mpi"
    return None


def _active_controller() -> str | None:
    """Return what Horovod negotiates over, as ``InitializeHorovodOnce`` decides it.

    Only one context enabled leaves no choice; with both, it is the environment that decided.
    """
    if hvd.mpi_enabled() and not hvd.gloo_enabled():
        return "mpi"
    if hvd.gloo_enabled() and not hvd.mpi_enabled():
        return "gloo"
    named = os.environ.get("HOROVOD_CONTROLLER", "").lower()
    return named if named in ("mpi", "gloo") else None


def _gpu_allreduce_is_mpi() -> bool:
    """Say whether Horovod was built to hand device pointers to MPI, which only the build knows.

    ``hvdscale build-horovod`` leaves its options beside the package; Horovod itself keeps none.
    """
    path = Path(horovod.__file__).parent / BUILD_MARKER
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")).get("gpu") == "mpi-cuda")
    except (OSError, ValueError):
        return False
