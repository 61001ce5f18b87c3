"""Batches for torch: whole set on the device, in host memory, or from the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from harness.config.models import Loader
from harness.feed.fits import Room, check_fits, chunks, first, host_room
from harness.feed.loader import BatchLoader
from harness.feed.shard import Shard
from harness.feed.stepped import LoadedFeed, SteppedFeed
from harness.feed.torch_copy import CopyAhead, Cuda, Device, LoaderSource, RingSource, TorchBatch
from workloads.api import Samples

_INDICES = 2**16  # at a time: half a mebibyte
#: Gives this rank's next batch as tensors on the device.
TorchFeed = SteppedFeed["TorchBatch | Picked"]


@dataclass(frozen=True)
class Picked:
    """A batch that lies in a whole split on the device, still to be gathered.

    For a captured step, which gathers in its graph; unpacked, it is gathered at once.
    """

    arrays: TorchBatch  # (samples, ...) inputs and targets
    index: torch.Tensor  # (batch,)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Give inputs and targets, (batch, ...) each."""
        return (array.index_select(0, self.index) for array in self.arrays)


class DeviceFeed(TorchFeed):
    """The whole split lies in device memory; a batch is an index operation there.

    On a CPU that memory is the host's. With ``picked`` a batch is a ``Picked``.
    """

    def __init__(
        self, samples: Samples, shard: Shard, device: torch.device, *, picked: bool = False
    ) -> None:
        super().__init__(shard)
        self._picked = picked
        check_fits("device", samples, _room(device))
        self._arrays = _whole(samples, device)
        self._ahead = IndicesAhead(shard, device) if device.type == "cuda" else None

    @override
    def _take(self, position: int) -> TorchBatch | Picked:
        batch = Picked(self._arrays, self._index(position))
        if self._picked:
            return batch
        inputs, targets = batch
        return inputs, targets

    def _index(self, position: int) -> torch.Tensor:
        if self._ahead is None:
            return torch.from_numpy(self._shard.at(position))
        return self._ahead.at(position)

    @override
    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


class IndicesAhead:
    """The sample indices of steps to come, brought to a GPU many at a time.

    A copy for each step would cost the host as much as launching a small model's whole step, and an
    epoch's order, which takes milliseconds to draw, would keep it from launching any. So a thread
    makes the next table meanwhile; it alone asks the shard.
    """

    def __init__(self, shard: Shard, device: torch.device) -> None:
        self._shard = shard
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="indices")
        self._first = 0
        self._table = torch.zeros(0, 0, dtype=torch.int64)  # (steps, batch) on the device
        self._next: tuple[int, Future[torch.Tensor]] | None = None  # and the step it begins with

    def at(self, position: int) -> torch.Tensor:
        """Return the indices of a step's batch, (batch,), on the device."""
        row = position - self._first
        if not 0 <= row < len(self._table):
            self._table, self._first, row = self._made(position), position, 0
        return self._table[row]

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(cancel_futures=True)

    def _made(self, position: int) -> torch.Tensor:
        if self._next is None or self._next[0] != position:
            self._next = position, self._thread.submit(self._make, position)
        table = self._next[1].result()
        after = position + len(table)
        self._next = after, self._thread.submit(self._make, after)
        return table.to(self._device, non_blocking=True)

    def _make(self, position: int) -> torch.Tensor:
        batch = len(self._shard.at(position))
        rows = self._shard.rows(position, max(1, _INDICES // batch))
        table = torch.from_numpy(np.ascontiguousarray(rows))
        if self._device.type != "cuda":
            return table
        # From other memory the copy would wait for all that the device has queued.
        with torch.cuda.device(self._device):  # a new thread is at GPU 0, whoever it works for
            return table.pin_memory()


class HostFeed(TorchFeed):
    """The split lies in host memory, and so does the device: a batch is gathered there."""

    def __init__(self, samples: Samples, shard: Shard) -> None:
        super().__init__(shard)
        self._inputs, self._targets = _on_host(samples)

    @override
    def _take(self, position: int) -> TorchBatch:
        index = torch.from_numpy(self._shard.at(position))
        return self._inputs.index_select(0, index), self._targets.index_select(0, index)


class CopiedFeed(TorchFeed):
    """A batch comes from pinned host memory to a GPU, copied while the step before computes."""

    def __init__(self, shard: Shard, ahead: CopyAhead) -> None:
        super().__init__(shard)
        self._ahead = ahead

    @override
    def _take(self, position: int) -> TorchBatch:
        return self._ahead.take(position)

    @override
    def seek(self, position: int) -> None:
        super().seek(position)
        self._ahead.seek(position)

    @override
    def close(self) -> None:
        self._ahead.close()


def make_feed(
    kind: str,
    samples: Samples,
    shard: Shard,
    device: torch.device,
    loader: Loader = Loader(),  # noqa: B008 - frozen
    *,
    picked: bool = False,
) -> TorchFeed:
    """Make the feed ``kind``: device, host or disk, which alone has a loader.

    With ``picked`` batches on the device are left to be gathered by the step.
    ValidationError where the whole set should lie in memory that it does not fit into. Samples
    that are no arrays (images to be decoded) are read once, in the beginning.
    """
    if kind == "device":
        return DeviceFeed(samples, shard, device, picked=picked)
    if device.type == "cuda":
        return copied_feed(kind, samples, shard, Cuda(device), loader)
    if kind == "host":
        return HostFeed(samples, shard)

    def read(indices: NDArray[np.int64]) -> TorchBatch:
        inputs, targets = samples.gather(indices)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    return LoadedFeed(shard, BatchLoader(read, shard, loader.workers, loader.prefetch))


def copied_feed(
    kind: str, samples: Samples, shard: Shard, device: Device, loader: Loader
) -> CopiedFeed:
    """Make the feed ``kind``, host or disk, for a GPU."""
    if kind == "host":
        return CopiedFeed(shard, CopyAhead(RingSource(_on_host(samples), shard, device), device))

    def read(indices: NDArray[np.int64]) -> Sequence[torch.Tensor]:
        return [device.pin(array) for array in samples.gather(indices)]

    batches = BatchLoader(read, shard, loader.workers, loader.prefetch)
    return CopiedFeed(shard, CopyAhead(LoaderSource(batches, device), device))


def _on_host(samples: Samples) -> TorchBatch:
    check_fits("host", samples, host_room())
    return _whole(samples, torch.device("cpu"))


def _room(device: torch.device) -> Room:
    if device.type == "cpu":
        return host_room()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return Room(f"GPU {device.index}", free_bytes, total_bytes, 1)


def _whole(samples: Samples, device: torch.device) -> TorchBatch:
    """Return the whole set on ``device``, read piece by piece: a GPU's is never whole on the host.

    Copies: a memory map would read its file inside the window.
    """
    inputs, targets = (
        torch.empty(
            (len(samples), *one.shape[1:]), dtype=torch.from_numpy(one).dtype, device=device
        )
        for one in first(samples)
    )
    for start, (some_inputs, some_targets) in chunks(samples):
        stop = start + len(some_inputs)
        inputs[start:stop].copy_(torch.from_numpy(some_inputs))
        targets[start:stop].copy_(torch.from_numpy(some_targets))
    return inputs, targets
