"""The three ways to the device give the same batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.feed.shard import Shard
from workloads.api import Batch

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")
COUNT = 23


@dataclass(frozen=True)
class ArraySamples:
    """Samples that know what they are: sample i is all i, its target 100 + i."""

    plain: bool = True

    def _all(self) -> Batch:
        index = np.arange(COUNT, dtype=np.float32)
        inputs = np.broadcast_to(index[:, None, None], (COUNT, 2, 3)).copy()
        inputs.flags.writeable = False  # as a memory map's
        return inputs, (100 + index)[:, None]

    def __len__(self) -> int:
        return COUNT

    def gather(self, indices: np.ndarray) -> Batch:
        inputs, targets = self._all()
        return inputs[indices], targets[indices]

    def arrays(self) -> Batch | None:
        return self._all() if self.plain else None

    def files(self) -> tuple[Path, ...]:
        return ()


def feed(kind: str, rank: int = 1, plain: bool = True) -> object:
    from harness.feed.torch_feed import make_feed

    return make_feed(kind, ArraySamples(plain), Shard(COUNT, 4, rank, 2, seed=3), CPU)


@pytest.mark.parametrize("kind", ["device", "host", "disk"])
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_are_those_of_the_shard(kind: str, rank: int) -> None:
    made, shard = feed(kind, rank), Shard(COUNT, 4, rank, 2, seed=3)
    for _ in range(2 * shard.steps_per_epoch):
        inputs, targets = made.next()
        wanted = torch.from_numpy(shard.next().astype(np.float32))
        assert (inputs.shape, targets.shape) == ((4, 2, 3), (4, 1))
        assert (inputs.dtype, inputs.device) == (torch.float32, CPU)
        assert torch.equal(inputs, wanted[:, None, None].expand(4, 2, 3))
        assert torch.equal(targets, 100 + wanted[:, None])


@pytest.mark.parametrize("kind", ["device", "host", "disk"])
def test_a_batch_is_a_copy(kind: str) -> None:
    """A model that changes its input in place must not change the data."""
    made = feed(kind)
    made.next()[0].zero_()
    steps = made.shard.steps_per_epoch
    seen = torch.cat([made.next()[0][:, 0, 0] for _ in range(3 * steps)])
    assert (seen == 0).sum() <= 3  # sample 0 itself, once an epoch


@pytest.mark.parametrize("kind", ["device", "host"])
def test_data_without_arrays_can_only_come_from_disk(kind: str) -> None:
    assert len(feed("disk", plain=False).next()) == 2
    with pytest.raises(ConfigError, match=f"data: {kind} needs .* use data: disk"):
        feed(kind, plain=False)
