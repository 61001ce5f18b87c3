"""What all torch engines share: device, threads, precision, buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from harness.engines.api import Engine
from harness.errors import MissingDependencyError
from harness.feed.shard import Shard
from harness.feed.torch_feed import TorchFeed, make_feed
from workloads.api import Samples


class TorchEngine(Engine):
    """The parts of the contract that do not depend on how ranks are joined."""

    framework = "torch"
    device: torch.device

    def prepare_device(self, local_rank: int) -> None:
        """Take this rank's device and cores, and set the precision that was asked for."""
        torch.set_num_threads(self.resolved.cores_per_rank)
        tf32 = self.config.execution.precision == "tf32"
        # Without this torch runs convolutions in TF32 by default, and 'fp32' would not be true.
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
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
        return {
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
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
        return make_feed(kind, samples, shard, self.device)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
