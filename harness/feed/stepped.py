"""What the feeds of all frameworks share: where they stand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from typing_extensions import override

from harness.feed.loader import BatchLoader
from harness.feed.shard import Shard

T = TypeVar("T")


class SteppedFeed(ABC, Generic[T]):
    """Gives this rank's next batch, ``T``, as tensors on the device."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._position = 0

    @property
    def position(self) -> int:
        """Return the step whose batch comes next, counted over all epochs."""
        return self._position

    @property
    def steps_per_epoch(self) -> int:
        """Return the global batches of an epoch."""
        return self._shard.steps_per_epoch

    def next(self) -> T:
        """Return (inputs, targets) of the next step; after an error the position is as before."""
        batch = self._take(self._position)
        self._position += 1
        return batch

    def seek(self, position: int) -> None:
        """Go to a step; what was read ahead is forgotten."""
        self._position = position

    def close(self) -> None:
        """Let threads and buffers go."""

    @abstractmethod
    def _take(self, position: int) -> T:
        """Return the batch of a step on the device."""


class LoadedFeed(SteppedFeed[T]):
    """A batch is read from its files, and made what the device takes, by a loader's workers."""

    def __init__(self, shard: Shard, loader: BatchLoader[T]) -> None:
        super().__init__(shard)
        self._loader = loader

    @override
    def _take(self, position: int) -> T:
        return self._loader.next()

    @override
    def seek(self, position: int) -> None:
        super().seek(position)
        self._loader.seek(position)

    @override
    def close(self) -> None:
        self._loader.close()
