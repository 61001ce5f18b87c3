"""Which samples a rank trains on in which step; pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from workloads.api import Order


class Feed(Protocol):
    """Gives one rank's batches, step by step."""

    @property
    def position(self) -> int:
        """Return the step whose batch comes next, counted over all epochs."""

    @property
    def steps_per_epoch(self) -> int:
        """Return the global batches of an epoch."""

    def next(self) -> Any:
        """Return (inputs, targets) of the next step, on the device."""

    def seek(self, position: int) -> None:
        """Go to a step; what was read ahead for another one is forgotten."""

    def close(self) -> None:
        """Let threads and buffers go; nothing is read any more."""


class Shard:
    """The samples of one rank, step by step.

    In each epoch the training set is permuted from (seed, epoch). Global batch k is
    ``perm[k·B·N : (k+1)·B·N]`` and rank r takes its r-th B samples, so the global batch of a step
    does not depend on how many ranks share it. What is left at the end of an epoch and fills no
    global batch is not used in that epoch; the next permutation gives other samples that place.
    """

    def __init__(self, samples: int, batch: int, rank: int, world_size: int, seed: int) -> None:
        if batch * world_size > samples:
            raise ValueError(f"a global batch of {batch * world_size} from {samples} samples")
        self._samples = samples
        self._batch = batch
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._epoch = -1
        self._permutation: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.step = 0  # of the batch that ``next`` gives, counted over all epochs

    @property
    def steps_per_epoch(self) -> int:
        """Return the global batches of an epoch."""
        return self._samples // (self._batch * self._world_size)

    def next(self) -> NDArray[np.int64]:
        """Return the indices of this rank's next batch, (batch,)."""
        self.step += 1
        return self.at(self.step - 1)

    def at(self, step: int) -> NDArray[np.int64]:
        """Return the indices of this rank's batch in any step from 0, (batch,).

        Going on is cheap; another epoch than that of the call before costs its permutation.
        """
        first: NDArray[np.int64] = self.rows(step, 1)[0]
        return first

    def rows(self, step: int, steps: int) -> NDArray[np.int64]:
        """Return what ``at`` gives for so many steps, (steps, batch), up to the epoch's end."""
        epoch, k = divmod(step, self.steps_per_epoch)
        return self._of_epoch(epoch, k, min(steps, self.steps_per_epoch - k))

    def _of_epoch(self, epoch: int, k: int, steps: int) -> NDArray[np.int64]:
        """Return the indices of batches k, k + 1, ... of an epoch, (steps, batch)."""
        if epoch != self._epoch:
            self._permutation = epoch_permutation(self._samples, self._seed, epoch)
            self._epoch = epoch
        everyone = self._world_size * self._batch
        found = self._permutation[k * everyone : (k + steps) * everyone]
        return found.reshape(steps, self._world_size, self._batch)[:, self._rank]


class StreamShard(Shard):
    """The samples of one rank where each row of a batch goes on, step by step, where it was.

    The set in its own order is a ring, cut into B·N streams of L = n // (B·N) samples from an
    offset that is drawn from (seed, epoch). Row b of rank r is stream s = r·B + b, and in step k it
    has sample ``(offset + s·L + k) mod n``. So state that a model carries from batch to batch meets
    what follows; an epoch has L steps and each sample at most once, and the global batch does not
    depend on how many ranks share it. The n − B·N·L samples just before the offset are not used in
    that epoch; another offset gives other samples that place. One stream an epoch passes from the
    last sample to the first.
    """

    @override
    def _of_epoch(self, epoch: int, k: int, steps: int) -> NDArray[np.int64]:
        streams = self._rank * self._batch + np.arange(self._batch, dtype=np.int64)
        offset = epoch_offset(self._samples, self._seed, epoch)
        batches = k + np.arange(steps, dtype=np.int64)[:, None]
        found: NDArray[np.int64] = offset + streams * self.steps_per_epoch + batches
        return found % self._samples


def make_shard(
    order: Order, samples: int, batch: int, rank: int, world_size: int, seed: int
) -> Shard:
    """Return what a rank trains on, as ``WorkloadInfo.order`` of its workload asks for.

    ``batch`` is of one rank. ValueError where a global batch is larger than the training set.
    """
    kind = StreamShard if order == "streams" else Shard
    return kind(samples, batch, rank, world_size, seed)


def epoch_permutation(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of the samples in one epoch, the same on every rank and machine."""
    return _drawn(seed, epoch).permutation(samples)


@lru_cache(maxsize=16)  # asked for in every step
def epoch_offset(samples: int, seed: int, epoch: int) -> int:
    """Return the sample that an epoch of streams begins at, the same on every rank and machine."""
    return int(_drawn(seed, epoch).integers(samples))


def _drawn(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, epoch]))
