"""What all torch engines share: device, threads, precision, buffers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from harness.engines.api import Engine
from harness.errors import MissingDependencyError


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
    def versions(self) -> Mapping[str, str]:
        found = {"torch": str(torch.__version__), "torch_cuda": str(torch.version.cuda or "")}
        if self.resolved.device == "cuda":
            found["device"] = torch.cuda.get_device_name(self.device)
            nccl: Any = torch.cuda.nccl
            found["nccl"] = ".".join(map(str, nccl.version()))
        return {key: value for key, value in found.items() if value}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def mpi_library(path: str) -> str:
    """Return what the MPI in the shared library ``path`` calls itself, on one line."""
    library = ctypes.CDLL(path)
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    # MPI 3.1, 8.1.1: callable at any time, even before MPI_Init.
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return " ".join(text.value.decode(errors="replace").split())


def loaded_libraries(*stems: str) -> dict[str, str]:
    """Return the shared libraries mapped into this process whose file name begins with a stem."""
    found: dict[str, str] = {}
    with open(f"/proc/{os.getpid()}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            name = os.path.basename(path)
            for stem in stems:
                if name.startswith(stem):
                    found[stem] = path
    return found
