"""What all torch engines share: device, threads, precision, buffers."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from harness.engines import active
from harness.engines.active import Finding
from harness.engines.api import Engine
from harness.engines.torch_graph import capturable_optimiser
from harness.engines.torch_step import TorchStep
from harness.errors import LaunchError, MissingDependencyError
from harness.feed.shard import Shard
from harness.feed.torch_feed import TorchFeed, make_feed
from workloads.api import Parts, Samples

_Step = TypeVar("_Step", bound=TorchStep)
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_AMPERE = (8, 0)  # the first generation that has TF32


class TorchEngine(Engine):
    """The parts of the contract that do not depend on how ranks are joined."""

    framework = "torch"
    device: torch.device
    _step: TorchStep | None = None
    _options: Mapping[str, str] = MappingProxyType({})  # evidence, by option

    def prepare_device(self, local_rank: int, rank: int) -> None:
        """Take this rank's device and cores, and set the precision that was asked for."""
        if self.config.deterministic:
            make_deterministic(self.config.seed + rank)
        torch.set_num_threads(self.resolved.cores_per_rank)
        tf32 = self.config.execution.precision == "tf32"
        # Without this torch runs convolutions in TF32 by default, and 'fp32' would not be true.
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = self.config.execution.cudnn_benchmark
        if self.resolved.device == "cpu":
            self.device = torch.device("cpu")
            return
        if not torch.cuda.is_available():
            raise MissingDependencyError(
                f"a GPU was asked for, but torch {torch.__version__} sees none: install a CUDA "
                "build of torch, or check CUDA_VISIBLE_DEVICES"
            )
        count = torch.cuda.device_count()
        # A launcher that gives each rank one visible device has done the choosing already.
        index = 0 if count == 1 else local_rank
        if index >= count:
            raise MissingDependencyError(
                f"local rank {local_rank} has no GPU of its own: {count} are visible"
            )
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)

    def compiled(self, model: Any) -> Any:
        """Return what runs the model: the model itself, or compiled at its first batch."""
        execution = self.config.execution
        if not execution.compile:
            return model
        if execution.graph and self.config.horovod.groups > 1:
            return _compiled_in_parts(model, self.config.horovod.groups)
        return torch.compile(model)

    def optimiser(self, parts: Parts, model: Any, learning_rate: float) -> Any:
        """Return the workload's optimiser, in the form that was asked for."""
        execution = self.config.execution
        if execution.graph:
            return capturable_optimiser(parts, model, learning_rate, execution, self.device)
        return parts.optimiser(model, learning_rate, execution.fused_optimiser)

    def keep(self, step: _Step, findings: Iterable[Finding] = ()) -> _Step:
        """Return the step that was built; LaunchError where an option is not in force."""
        self._options = active.require([*self._findings(), *findings])
        self._step = step
        return step

    def _findings(self) -> Iterator[Finding]:
        if self.config.execution.precision == "tf32":
            yield tf32(self.device)
        if self.config.execution.cudnn_benchmark:
            benchmark = bool(torch.backends.cudnn.benchmark)
            told = f"torch.backends.cudnn.benchmark: {benchmark}"
            yield Finding("execution.cudnn_benchmark: true", benchmark, told)
        if self.config.deterministic:
            yield deterministic()

    @override
    def make_buffer(self, count_bytes: int) -> Any:
        return torch.zeros(count_bytes // 4, dtype=torch.float32, device=self.device)

    @override
    def fill(self, buffer: Any, value: float) -> None:
        buffer.fill_(value)
        self._wait()

    @override
    def to_host(self, buffer: Any) -> NDArray[np.float32]:
        host: NDArray[np.float32] = buffer.detach().cpu().numpy()
        return host

    @override
    def device_uuid(self) -> str | None:
        if self.device.type != "cuda":
            return None
        # NVML writes "GPU-" before what torch has: an index would be that of the visible devices.
        return f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"

    @override
    def facts(self) -> dict[str, Any]:
        shown = self._step.options if self._step is not None else None
        options = {**self._options, **(shown or {})}
        return {
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
            **({"options": options} if options else {}),
        }

    @override
    def versions(self) -> Mapping[str, str]:
        found = {"torch": str(torch.__version__), "torch_cuda": str(torch.version.cuda or "")}
        if self.resolved.device == "cuda":
            found["device"] = torch.cuda.get_device_name(self.device)
            nccl: Any = torch.cuda.nccl
            found["nccl"] = ".".join(map(str, nccl.version()))
        return {key: value for key, value in found.items() if value}

    @override
    def feed(self, kind: str, samples: Samples, shard: Shard) -> TorchFeed:
        picked = self.config.execution.graph  # it gathers a batch in the graph
        return make_feed(kind, samples, shard, self.device, self.config.loader, picked=picked)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _compiled_in_parts(model: Any, count: int) -> Any:
    # Asked for here: it imports Dynamo, which takes seconds, and most launches compile nothing.
    try:
        from harness.engines.torch_split import in_parts
    except ImportError as error:
        raise LaunchError(
            f"horovod.groups with execution.compile: torch {torch.__version__} has no "
            f"DDPOptimizer that can be used, which cuts a compiled model ({error}); set "
            "horovod.groups to 0, or execution.compile to false"
        ) from error
    return torch.compile(model, backend=in_parts(model, count))


def make_deterministic(seed: int) -> None:
    """Let torch use nothing whose result varies, and seed what draws random numbers.

    Called before CUDA starts: cuBLAS reads its workspace when it does. An operation that has no
    deterministic form raises RuntimeError from then on.
    """
    os.environ.setdefault(_CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def deterministic() -> Finding:
    """Read back what ``make_deterministic`` has set."""
    told = {
        "use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.deterministic": bool(torch.backends.cudnn.deterministic),
        "no cudnn.benchmark": not torch.backends.cudnn.benchmark,
    }
    evidence = ", ".join(f"{name}: {value}" for name, value in told.items())
    return Finding(
        "deterministic: true", all(told.values()), f"{evidence}, {_CUBLAS}={os.environ[_CUBLAS]}"
    )


def tf32(device: torch.device) -> Finding:
    """Read back whether matrix products and convolutions may use TF32, and whether this GPU can."""
    matmul = bool(torch.backends.cuda.matmul.allow_tf32)
    cudnn = bool(torch.backends.cudnn.allow_tf32)
    capability = torch.cuda.get_device_capability(device)
    return Finding(
        "execution.precision: tf32",
        matmul and cudnn and capability >= _AMPERE,
        f"matmul.allow_tf32: {matmul}, cudnn.allow_tf32: {cudnn}, compute capability "
        f"{capability[0]}.{capability[1]} (TF32 needs 8.0)",
    )
