"""Batches for torch: whole set on the device, in host memory, or from the file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.errors import ConfigError
from harness.feed.shard import Shard
from workloads.api import Samples

TorchBatch = tuple[torch.Tensor, torch.Tensor]


class TorchFeed(ABC):
    """Gives this rank's next batch as tensors on the device."""

    def __init__(self, shard: Shard, device: torch.device) -> None:
        self.shard: Shard = shard
        self._device = device

    @property
    def position(self) -> int:
        """Return the step whose batch comes next, counted over all epochs."""
        return self.shard.step

    @property
    def steps_per_epoch(self) -> int:
        """Return the global batches of an epoch."""
        return self.shard.steps_per_epoch

    def seek(self, position: int) -> None:
        """Go to a step."""
        self.shard.step = position

    def close(self) -> None:  # noqa: B027
        """Nothing is read ahead."""

    def next(self) -> TorchBatch:
        """Return (inputs, targets) of the next step."""
        return self._take(self.shard.next())

    @abstractmethod
    def _take(self, indices: NDArray[np.int64]) -> TorchBatch:
        """Return the samples at ``indices`` on the device."""


class DeviceFeed(TorchFeed):
    """The whole split lies in device memory; a batch is an index operation there."""

    def __init__(self, samples: Samples, shard: Shard, device: torch.device) -> None:
        super().__init__(shard, device)
        inputs, targets = _whole(samples, "device")
        self._inputs = inputs.to(device)
        self._targets = targets.to(device)

    def _take(self, indices: NDArray[np.int64]) -> TorchBatch:
        index = torch.from_numpy(indices).to(self._device, non_blocking=True)
        return self._inputs.index_select(0, index), self._targets.index_select(0, index)


class HostFeed(TorchFeed):
    """The split lies in host memory; a batch is gathered there and copied over.

    For a GPU it is gathered into pinned memory and copied without waiting for it.
    """

    def __init__(self, samples: Samples, shard: Shard, device: torch.device) -> None:
        super().__init__(shard, device)
        self._inputs, self._targets = _whole(samples, "host")
        self._pin = device.type == "cuda"

    def _take(self, indices: NDArray[np.int64]) -> TorchBatch:
        index = torch.from_numpy(indices)
        return self._copy(self._inputs, index), self._copy(self._targets, index)

    def _copy(self, source: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        batch = source.index_select(0, index)
        if not self._pin:
            return batch
        return batch.pin_memory().to(self._device, non_blocking=True)


class DiskFeed(TorchFeed):
    """A batch is read from the (memory-mapped) file when it is asked for."""

    def __init__(self, samples: Samples, shard: Shard, device: torch.device) -> None:
        super().__init__(shard, device)
        self._samples = samples

    def _take(self, indices: NDArray[np.int64]) -> TorchBatch:
        inputs, targets = self._samples.gather(indices)
        return (
            torch.from_numpy(inputs).to(self._device),
            torch.from_numpy(targets).to(self._device),
        )


_FEEDS: dict[str, type[Any]] = {"device": DeviceFeed, "host": HostFeed, "disk": DiskFeed}


def make_feed(kind: str, samples: Samples, shard: Shard, device: torch.device) -> TorchFeed:
    """Make the feed ``kind``: device, host or disk."""
    feed: TorchFeed = _FEEDS[kind](samples, shard, device)
    return feed


def _whole(samples: Samples, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = samples.arrays()
    if arrays is None:
        raise ConfigError(f"data: {kind} needs a data set of plain arrays; use data: disk")
    # Copies: a memory map would read the file inside the window.
    inputs, targets = (torch.from_numpy(np.array(array)) for array in arrays)
    return inputs, targets
