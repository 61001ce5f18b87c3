"""Batches read ahead by threads, in order; no framework in it.

Threads, not processes: a process that has started MPI, NCCL or CUDA must not be forked, a spawned
one would import the framework again and hand every batch over by copy, and what reading a batch
waits for needs no interpreter lock: page faults of a memory map under numpy's indexing, reads of
files, and Pillow's decoding all release it. A workload whose ``gather`` computes in Python itself
gains nothing from more than one worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.feed.shard import Shard

T = TypeVar("T")


class BatchLoader(Generic[T]):
    """One rank's batches, read by ``workers`` threads before they are asked for.

    ``read`` makes a batch of its indices: ``Samples.gather``, or that and more, since it runs in a
    worker. Not more than ``workers + prefetch`` batches are being read or lie ready, beside the one
    that was handed out. Nothing is read before the first ``next``. With no workers a batch is read
    by whoever asks for it, when asked. One thread at a time may use a loader.
    """

    def __init__(
        self,
        read: Callable[[NDArray[np.int64]], T],
        shard: Shard,
        workers: int,
        prefetch: int,
    ) -> None:
        self._read = read
        self._shard = shard
        self._depth = workers + prefetch
        self._pool = ThreadPoolExecutor(workers, "hvdscale-loader") if workers else None
        self._ahead: deque[Future[T]] = deque()  # of steps from _position on
        self._position = 0
        self._closed = False

    @property
    def position(self) -> int:
        """Return the step whose batch comes next, counted over all epochs."""
        return self._position

    @property
    def steps_per_epoch(self) -> int:
        """Return the global batches of an epoch."""
        return self._shard.steps_per_epoch

    def next(self) -> T:
        """Return the batch of the next step.

        Raises what ``read`` raised for this very batch, not earlier; the position stays, and what
        was read ahead is forgotten, so that asking again reads again.
        """
        if self._closed:
            raise ValueError("a closed loader has no next batch")
        try:
            batch = self._take()
        except BaseException:
            self._forget()
            raise
        self._position += 1
        return batch

    def seek(self, position: int) -> None:
        """Go to a step; returns when no worker reads for another one any more."""
        self._forget()
        self._position = position

    def close(self) -> None:
        """End the threads; returns when they are gone. May be called again."""
        self._closed = True
        self._forget()
        if self._pool is not None:
            self._pool.shutdown()

    def _take(self) -> T:
        if self._pool is None:
            return self._read(self._shard.at(self._position))
        self._fill(self._pool, self._position)
        batch = self._ahead.popleft().result()
        self._fill(self._pool, self._position + 1)
        return batch

    def _fill(self, pool: ThreadPoolExecutor, first: int) -> None:
        """Let reading go on up to the bound; ``first`` is the step of the first one ahead."""
        while len(self._ahead) < self._depth:
            # The indices are made here: a shard keeps its epoch's order, and has no lock.
            indices = self._shard.at(first + len(self._ahead))
            self._ahead.append(pool.submit(self._read, indices))

    def _forget(self) -> None:
        # Those being read are waited for, else more batches than the bound could be in memory,
        # and reading would go on beside what is measured next.
        wait([future for future in self._ahead if not future.cancel()])
        self._ahead.clear()
