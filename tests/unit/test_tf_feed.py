"""The three ways to TensorFlow's device give the same batches."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from harness.config.models import Loader
from harness.errors import ValidationError
from harness.feed import fits
from harness.feed.shard import Shard, make_shard
from workloads.api import ArraySamples, Batch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from harness.feed.tf_feed import make_feed  # noqa: E402

CPU = "/CPU:0"
COUNT = 23
WAYS = [
    ("device", Loader()),
    ("host", Loader()),
    ("disk", Loader(workers=0)),
    ("disk", Loader(workers=2, prefetch=1)),
]


def numbered() -> ArraySamples:
    """Return samples that know what they are: sample i is all i, its target 100 + i."""
    inputs = np.repeat(np.arange(COUNT, dtype=np.uint8)[:, None], 3, axis=1)
    inputs.flags.writeable = False  # as a memory map's
    return ArraySamples(inputs, (100 + np.arange(COUNT, dtype=np.int64))[:, None])


class Decoded:
    """The same without arrays, as images that are decoded."""

    def __len__(self) -> int:
        return COUNT

    def gather(self, indices: np.ndarray) -> Batch:
        return numbered().gather(indices)

    def arrays(self) -> Batch | None:
        return None

    def files(self) -> tuple[Path, ...]:
        return ()


@pytest.mark.parametrize("samples", [numbered(), Decoded()], ids=["arrays", "decoded"])
@pytest.mark.parametrize(("kind", "loader"), WAYS)
@pytest.mark.parametrize("order", ["shuffled", "streams"])
def test_batches_are_those_of_the_shard(
    kind: str, loader: Loader, order: str, samples: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "CHUNK_BYTES", 50)  # the whole set comes in pieces
    shards = [make_shard(order, COUNT, 4, 1, 2, seed=3) for _ in range(2)]
    feed = make_feed(kind, samples, shards[0], CPU, loader)
    try:
        assert feed.steps_per_epoch == COUNT // 8
        for step in [0, 1, 2, 3, 4, 1, 2, 0, 7]:
            if feed.position != step:
                feed.seek(step)
            inputs, targets = feed.next()
            assert (inputs.dtype, targets.dtype) == (tf.uint8, tf.int64)
            wanted = shards[1].at(step)
            np.testing.assert_array_equal(inputs.numpy(), np.repeat(wanted[:, None], 3, axis=1))
            np.testing.assert_array_equal(targets.numpy()[:, 0], 100 + wanted)
            assert feed.position == step + 1
    finally:
        feed.close()
    assert not [t for t in threading.enumerate() if "hvdscale-loader" in t.name]


@pytest.mark.parametrize("kind", ["device", "host", "disk"])
def test_batches_are_copies_of_what_is_kept(kind: str) -> None:
    samples = numbered()
    feed = make_feed(kind, samples, Shard(COUNT, 4, 0, 1, seed=3), CPU)
    try:
        first = [part.numpy().copy() for part in feed.next()]
        feed.next()
        feed.seek(0)
        for before, after in zip(first, feed.next(), strict=True):
            np.testing.assert_array_equal(before, after.numpy())
    finally:
        feed.close()


@pytest.mark.parametrize("kind", ["device", "host"])
def test_a_set_that_does_not_fit_is_refused_before_it_is_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = fits.Room("the host", free_bytes=100, total_bytes=1000, ranks=1)
    monkeypatch.setattr("harness.feed.tf_feed.host_room", lambda: room)
    with pytest.raises(ValidationError, match=f"data: {kind}: 23 training samples .* data: disk"):
        make_feed(kind, numbered(), Shard(COUNT, 4, 0, 1, seed=3), CPU)
