"""Which samples a rank trains on in which step; pure."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


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
        self.step = 0  # of the next batch, counted over all epochs

    @property
    def steps_per_epoch(self) -> int:
        """Return the global batches of an epoch."""
        return self._samples // (self._batch * self._world_size)

    def next(self) -> NDArray[np.int64]:
        """Return the indices of this rank's next batch, (batch,)."""
        epoch, k = divmod(self.step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._permutation = epoch_permutation(self._samples, self._seed, epoch)
        start = (k * self._world_size + self._rank) * self._batch
        self.step += 1
        return self._permutation[start : start + self._batch]


def epoch_permutation(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of the samples in one epoch, the same on every rank and machine."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return generator.permutation(samples)
