"""torch's DistributedDataParallel: the comparison that everybody asks for."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from harness.engines.active import Finding
from harness.engines.api import Reduced, World
from harness.engines.evidence import NETWORK_STEMS, loaded_libraries
from harness.engines.nccl_log import is_nccl, nccl_evidence
from harness.engines.torch_engine import TorchEngine
from harness.engines.torch_graph import GraphStep
from harness.engines.torch_recorder import CudaRecorder, Recorder
from harness.engines.torch_step import TorchStep, nothing
from harness.errors import LaunchError
from harness.ranks import RankPlace, find_place
from harness.record import BackendProof
from workloads.api import Parts

#: For this many steps DDP times itself by events of its own, which cannot be captured.
DDP_EAGER_STEPS = 11
#: Ranks may wait long for one that evaluates or makes data; a hang ends at the launch's own limit.
TIMEOUT = timedelta(hours=24)


class _WithDdp(TorchStep):
    """What an eager step and a captured one have of DistributedDataParallel."""

    @override
    def reduced(self) -> Reduced:
        # The reducer's own account of its buckets; they are rebuilt once, after the first step.
        ddp: Any = self._model
        data = ddp._get_ddp_logging_data()
        sizes = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
        bucket_bytes = sum(int(size) for size in sizes.split(",") if size.strip())
        return Reduced(self._reduced_steps, bucket_bytes * self._reduced_steps)

    @override
    def _local_only(self) -> AbstractContextManager[None]:
        without: AbstractContextManager[None] = self._model.no_sync()
        return without


class DdpStep(_WithDdp):
    """DDP waits inside ``backward``, so the moment of the last local gradient is taken there."""

    def __init__(self, parts: Parts, model: Any, optimiser: Any, engine: Ddp) -> None:
        super().__init__(parts, model, optimiser, engine.config.execution, engine.device)
        self.gradient_allreduce = dist.get_world_size() > 1

    @override
    def _backward(self, loss: Any, mark: Callable[[], None]) -> None:
        handles = [] if mark is nothing else self._hook_last_gradient(mark)
        loss.backward()
        for handle in handles:
            handle.remove()
        if handles and self._left:
            raise LaunchError(
                f"{self._left} trainable parameter(s) got no gradient, so the moment of the last "
                "one cannot be marked; leave phases out of measure.instruments"
            )

    @override
    def _synchronise(self, sync: bool) -> None:
        self._reduced_steps += int(sync and self.gradient_allreduce)

    def _hook_last_gradient(self, mark: Callable[[], None]) -> list[Any]:
        """Mark when as many gradients as there are parameters have come, before DDP sees the last.

        Tensor hooks run before the gradient is accumulated, and DDP's own hooks after, so the mark
        stands at the end of local work and before the last bucket's all-reduce can start.
        """
        self._left = len(self._trained)

        def count(gradient: torch.Tensor) -> None:
            self._left -= 1
            if self._left == 0:
                mark()

        return [parameter.register_hook(count) for parameter in self._trained]


class DdpGraphStep(GraphStep, _WithDdp):
    """Backward is captured with DDP's all-reduces in it, by NCCL on its own stream.

    So the end of local work cannot be marked, and exposed sync is absent.
    """

    _reduces_in_backward = True

    def __init__(
        self, parts: Parts, model: Any, optimiser: Any, engine: Ddp, recorder: Recorder
    ) -> None:
        super().__init__(
            parts,
            model,
            optimiser,
            engine.config.execution,
            engine.device,
            recorder=recorder,
            eager_steps=DDP_EAGER_STEPS,
        )
        self.gradient_allreduce = dist.get_world_size() > 1

    @override
    def _reduce(self, sync: bool) -> None:
        self._reduced_steps += int(sync and self.gradient_allreduce)


def _no_buffers() -> dict[str, Any]:
    """Keep DDP from broadcasting buffers in each forward pass, as Horovod does not either.

    torch 2.13 has a new name for it, and warns of the old one.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    names = ("forward_sync_buffers", "broadcast_buffers")
    return {next(name for name in names if name in known): False}


class Ddp(TorchEngine):
    """Joins the ranks through torch.distributed."""

    name = "ddp"

    @override
    def start(self) -> World:
        place = _place(os.environ)
        if place.size != self.resolved.world_size:
            raise LaunchError(
                f"the launcher started {place.size} ranks, the config asks for "
                f"{self.resolved.world_size}"
            )
        self.prepare_device(place.local_rank, place.rank)
        device = self.device if self.device.type == "cuda" else None
        dist.init_process_group(
            self.resolved.backend or "gloo",
            rank=place.rank,
            world_size=place.size,
            timeout=TIMEOUT,
            device_id=device,
        )
        return World(place.rank, place.size, place.local_rank, place.local_size or 1)

    @override
    def build(self, parts: Parts, learning_rate: float) -> TorchStep:
        model = parts.model.to(self.device)
        optimiser = self.optimiser(parts, model, learning_rate)
        if not self.config.execution.graph:
            wrapped = self._wrapped(model)
            return self.keep(DdpStep(parts, wrapped, optimiser, self), self._knobs(wrapped))
        recorder = CudaRecorder(self.device)
        with recorder.eager():  # what autograd does for DDP belongs to the stream it was made on
            wrapped = self._wrapped(model)
        step = DdpGraphStep(parts, wrapped, optimiser, self, recorder)
        return self.keep(step, self._knobs(wrapped))

    def _knobs(self, wrapped: Any) -> list[Finding]:
        """Read back from DDP's own account each knob that is not at its default."""
        wanted, told = self.config.ddp, wrapped._get_ddp_logging_data()
        found = []
        if wanted.bucket_mb is not None:
            there = int(told.get("bucket_cap_bytes", 0))
            right = there == int(wanted.bucket_mb * 2**20)
            option = f"ddp.bucket_mb: {wanted.bucket_mb:g}"
            found.append(Finding(option, right, f"bucket_cap_bytes: {there}"))
        for name in ("gradient_as_bucket_view", "static_graph"):
            if getattr(wanted, name):
                there = int(told.get(name, 0))
                found.append(Finding(f"ddp.{name}: true", there == 1, f"{name}: {there}"))
        return found

    def _wrapped(self, model: Any) -> DistributedDataParallel:
        tuning = self.config.ddp
        # Compiled inside: of a compiled DistributedDataParallel Dynamo leaves some models out
        # (an nn.Sequential, say), and inside it still cuts the graph where buckets end.
        return DistributedDataParallel(
            self.compiled(model),
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=tuning.bucket_mb,
            gradient_as_bucket_view=tuning.gradient_as_bucket_view,
            static_graph=tuning.static_graph,
            **_no_buffers(),
        )

    @override
    def allreduce(self, buffer: Any) -> None:
        dist.all_reduce(buffer)
        self._wait()

    @override
    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    @override
    def barrier(self) -> None:
        self._wait()
        if self.device.type == "cuda":
            dist.barrier(device_ids=[self.device.index])
        else:
            dist.barrier()

    @override
    def proof(self) -> BackendProof:
        backend = str(dist.get_backend())
        evidence = {"process_group": backend, **loaded_libraries(*NETWORK_STEMS)}
        proven: str | None = backend
        if backend == "nccl":
            evidence |= nccl_evidence()
            proven = backend if is_nccl(evidence) else None
        return BackendProof(
            requested=self.resolved.backend, proven=proven, controller=None, evidence=evidence
        )

    @override
    def stop(self) -> None:
        if isinstance(self._step, DdpGraphStep):
            # NCCL's communicator is not destroyed as long as a graph has kernels of it: it hangs.
            self._step.forget_graphs()
        dist.destroy_process_group()


def _place(environ: Mapping[str, str]) -> RankPlace:
    place = find_place(environ)
    if place is None or place.launcher not in ("torchrun", "srun"):
        raise LaunchError(
            "engine ddp found no rank in its environment: start it with torchrun or srun"
        )
    return place
