"""Copies to a GPU beside the training stream, one batch ahead of it.

What must hold, whatever the host and the device are at: the training stream uses a batch only
after its copy is done; memory on the device is not given to another copy while the training stream
still reads it; pinned memory is not written again while it is being copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from harness.feed.loader import BatchLoader
from harness.feed.shard import Shard

TorchBatch = tuple[torch.Tensor, torch.Tensor]

SLOTS = 2  # of pinned memory: one is filled while the other is copied


class Device(Protocol):
    """What is used of CUDA; a test plays it."""

    def pinned_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return page-locked host memory."""

    def pin(self, array: NDArray[Any]) -> torch.Tensor:
        """Return a copy of ``array`` in page-locked memory; from any thread."""

    def copy(self, pinned: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], Any]:
        """Queue copies on the side stream; return the tensors and the event behind them."""

    def hand_over(self, tensors: Sequence[torch.Tensor], copied: Any) -> None:
        """Let the training stream wait for ``copied``, and have ``tensors`` until it is done."""

    def idle(self) -> None:
        """Wait until the side stream has nothing more to do."""


class Cuda:
    """One GPU with a side stream for copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        make_stream: Any = torch.cuda.Stream  # untyped in torch
        self._side = make_stream(device)

    def pinned_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return page-locked host memory."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def pin(self, array: NDArray[Any]) -> torch.Tensor:
        """Return a copy of ``array`` in page-locked memory; from any thread.

        torch keeps such memory for reuse, and gives it out again only after copies from it that
        were queued are done.
        """
        with torch.cuda.device(self._device):  # a new thread is at GPU 0, whoever it works for
            return torch.from_numpy(array).pin_memory()

    def copy(self, pinned: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], Any]:
        """Queue copies on the side stream; return the tensors and the event behind them.

        Device memory comes from the side stream's own pool.
        """
        make_event: Any = torch.cuda.Event
        copied = make_event()
        with torch.cuda.stream(self._side):
            tensors = [one.to(self._device, non_blocking=True) for one in pinned]
            copied.record(self._side)
        return tensors, copied

    def hand_over(self, tensors: Sequence[torch.Tensor], copied: Any) -> None:
        """Let the training stream wait for ``copied``, and have ``tensors`` until it is done."""
        training: Any = torch.cuda.current_stream(self._device)
        training.wait_event(copied)
        for tensor in tensors:
            # Else its memory would go to the next copy as soon as Python lets go of it.
            tensor.record_stream(training)

    def idle(self) -> None:
        """Wait until the side stream has nothing more to do."""
        self._side.synchronize()


class Source(Protocol):
    """Fills pinned memory with one batch after the other and has it copied."""

    def start(self, position: int) -> Flight:
        """Begin the copy of a step's batch."""

    def seek(self, position: int) -> None:
        """Forget what was read ahead; ``start`` goes on from ``position``."""

    def close(self) -> None:
        """Let threads and buffers go."""


@dataclass(frozen=True)
class Flight:
    """A batch on its way to the device."""

    tensors: Sequence[torch.Tensor]
    copied: Any  # the event behind its copies


@dataclass
class _Slot:
    tensors: Sequence[torch.Tensor]
    copied: Any = None  # of the last copy from it


class RingSource:
    """Gathers batches of a set in host memory into a ring of pinned buffers."""

    def __init__(self, arrays: Sequence[torch.Tensor], shard: Shard, device: Device) -> None:
        self._arrays = arrays
        self._shard = shard
        self._device = device
        self._slots: list[_Slot] = []
        self._turn = 0

    def start(self, position: int) -> Flight:
        """Begin the copy of a step's batch."""
        index = torch.from_numpy(self._shard.at(position))
        slot = self._free_slot(len(index))
        for source, pinned in zip(self._arrays, slot.tensors, strict=True):
            torch.index_select(source, 0, index, out=pinned)
        tensors, slot.copied = self._device.copy(slot.tensors)
        return Flight(tensors, slot.copied)

    def _free_slot(self, batch: int) -> _Slot:
        """Return the next slot of the ring, once the copy from it is done."""
        if not self._slots:
            self._slots = [_Slot(self._pinned(batch)) for _ in range(SLOTS)]
        slot = self._slots[self._turn % SLOTS]
        self._turn += 1
        if slot.copied is not None:
            slot.copied.synchronize()
        return slot

    def _pinned(self, batch: int) -> Sequence[torch.Tensor]:
        return [self._device.pinned_empty((batch, *a.shape[1:]), a.dtype) for a in self._arrays]

    def seek(self, position: int) -> None:
        """Nothing is read ahead."""

    def close(self) -> None:
        """Let the buffers go, once no copy reads them."""
        self._device.idle()
        self._slots = []


class LoaderSource:
    """Takes batches that a loader's workers have read into pinned memory."""

    def __init__(self, loader: BatchLoader[Sequence[torch.Tensor]], device: Device) -> None:
        self._loader = loader
        self._device = device

    def start(self, position: int) -> Flight:
        """Begin the copy of a step's batch."""
        if self._loader.position != position:
            self._loader.seek(position)
        return Flight(*self._device.copy(self._loader.next()))

    def seek(self, position: int) -> None:
        """Forget what was read ahead."""
        self._loader.seek(position)

    def close(self) -> None:
        """End the loader's threads."""
        self._loader.close()
        self._device.idle()


class CopyAhead:
    """Hands over a batch whose copy was begun a step before, and begins the next one's."""

    def __init__(self, source: Source, device: Device) -> None:
        self._source = source
        self._device = device
        self._ahead: tuple[int, Flight | Exception] | None = None  # and the step that it is of

    def take(self, position: int) -> TorchBatch:
        """Return the batch of a step, for what is queued on the training stream from now on.

        What went wrong for this step's batch is raised here, also where it was found a step before.
        """
        if self._ahead is None or self._ahead[0] != position:
            self._begin(position)
        assert self._ahead is not None
        _, flight = self._ahead
        self._ahead = None
        if isinstance(flight, Exception):
            raise flight
        self._device.hand_over(flight.tensors, flight.copied)
        self._begin(position + 1)
        inputs, targets = flight.tensors
        return inputs, targets

    def _begin(self, position: int) -> None:
        try:
            self._ahead = position, self._source.start(position)
        except Exception as error:  # noqa: BLE001 - raised by ``take`` of that step
            self._ahead = position, error

    def seek(self, position: int) -> None:
        """Forget what is ahead."""
        self._ahead = None
        self._source.seek(position)

    def close(self) -> None:
        """Forget what is ahead, and let threads and buffers go."""
        self._ahead = None
        self._source.close()
