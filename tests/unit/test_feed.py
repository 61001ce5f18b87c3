"""The three ways to the device give the same batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config.models import Loader
from harness.errors import ValidationError
from harness.feed import fits
from harness.feed.shard import Shard, make_shard
from workloads.api import ArraySamples, Batch, Order

torch = pytest.importorskip("torch")

from harness.feed import torch_feed  # noqa: E402

CPU = torch.device("cpu")
COUNT = 23
KINDS = ("device", "host", "disk")
LOADERS = (Loader(workers=0), Loader(workers=2, prefetch=1))


def numbered(count: int = COUNT) -> ArraySamples:
    """Return samples that know what they are: sample i is all i, its target 100 + i."""
    index = np.arange(count, dtype=np.float32)
    inputs = np.broadcast_to(index[:, None, None], (count, 2, 3)).copy()
    inputs.flags.writeable = False  # as a memory map's
    return ArraySamples(inputs, (100 + np.arange(count))[:, None])


@dataclass(frozen=True)
class Decoded:
    """The same without arrays, as images that are decoded; it counts what it reads."""

    plain: ArraySamples = field(default_factory=numbered)
    read: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.plain)

    def gather(self, indices: np.ndarray) -> Batch:
        self.read.extend(indices.tolist())
        return self.plain.gather(indices)

    def arrays(self) -> Batch | None:
        return None

    def files(self) -> tuple[Path, ...]:
        return ()


@contextmanager
def feeding(
    kind: str,
    samples: Any = None,
    order: Order = "shuffled",
    rank: int = 1,
    loader: Loader = LOADERS[1],
) -> Iterator[Any]:
    from harness.feed.torch_feed import make_feed

    shard = make_shard(order, COUNT, 4, rank, 2, seed=3)
    feed = make_feed(kind, samples or numbered(), shard, CPU, loader)
    try:
        yield feed
    finally:
        feed.close()


@pytest.mark.parametrize("loader", LOADERS, ids=["asked", "ahead"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["shuffled", "streams"])
def test_batches_are_those_of_the_shard(kind: str, order: Order, loader: Loader) -> None:
    for rank in (0, 1):
        shard = make_shard(order, COUNT, 4, rank, 2, seed=3)
        with feeding(kind, order=order, rank=rank, loader=loader) as made:
            assert made.steps_per_epoch == 2
            for step in range(2 * shard.steps_per_epoch):
                assert made.position == step
                inputs, targets = made.next()
                wanted = torch.from_numpy(shard.next())
                assert (inputs.shape, targets.shape) == ((4, 2, 3), (4, 1))
                assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
                assert torch.equal(inputs, wanted.float()[:, None, None].expand(4, 2, 3))
                assert torch.equal(targets, 100 + wanted[:, None])


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_has_every_sample_once_but_for_the_remainder(kind: str) -> None:
    """23 samples in global batches of 8: 16 an epoch, 7 left out."""
    for first in (0, 2):
        seen: list[int] = []
        for rank in (0, 1):
            with feeding(kind, rank=rank) as made:
                made.seek(first)
                for _ in range(made.steps_per_epoch):
                    seen += made.next()[1][:, 0].tolist()
        assert len(seen) == len(set(seen)) == 16


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_a_copy(kind: str) -> None:
    """A model that changes its input in place must not change the data."""
    with feeding(kind) as made:
        made.next()[0].zero_()
        steps = made.steps_per_epoch
        seen = torch.cat([made.next()[0][:, 0, 0] for _ in range(3 * steps)])
    assert (seen == 0).sum() <= 3  # sample 0 itself, once an epoch


@pytest.mark.parametrize("kind", KINDS)
def test_going_back_gives_the_same_batches_again(kind: str) -> None:
    with feeding(kind) as made:
        first = [made.next()[1] for _ in range(5)]
        made.seek(1)
        assert made.position == 1
        again = [made.next()[1] for _ in range(4)]
    assert all(torch.equal(one, other) for one, other in zip(first[1:], again, strict=True))


@pytest.mark.parametrize("kind", ["device", "host"])
@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_samples_without_arrays_are_read_once_and_in_pieces(
    kind: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "CHUNK_BYTES", chunk_bytes)
    for samples in (Decoded(), numbered()):
        with feeding(kind, samples) as made:
            if isinstance(samples, Decoded):
                assert sorted(set(samples.read)) == list(range(COUNT))
                assert samples.read.count(5) == 1  # of the first one the size is asked, too
                samples.read.clear()
            wanted = Shard(COUNT, 4, 1, 2, seed=3)
            for _ in range(4):
                assert made.next()[1][:, 0].tolist() == (100 + wanted.next()).tolist()
        assert not isinstance(samples, Decoded) or samples.read == []


def test_closing_ends_the_threads() -> None:
    with feeding("disk") as made:
        made.next()
        assert any(t.name.startswith("hvdscale-loader") for t in threading.enumerate())
    assert not any(t.name.startswith("hvdscale-loader") for t in threading.enumerate())


def test_an_unreadable_sample_is_the_error_of_its_batch() -> None:
    class Broken(Decoded):
        def gather(self, indices: np.ndarray) -> Batch:
            if 7 in indices:
                raise OSError("cannot read sample 7")
            return super().gather(indices)

    shard = Shard(COUNT, 4, 1, 2, seed=3)
    bad = next(step for step in range(40) if 7 in shard.at(step))
    with feeding("disk", Broken()) as made:
        made.seek(max(0, bad - 2))
        while made.position < bad:
            made.next()
        with pytest.raises(OSError, match="cannot read sample 7"):
            made.next()
        assert made.position == bad


SET_BYTES = COUNT * (2 * 3 * 4 + 8)


def room(free_bytes: int, total_bytes: int = 10 * SET_BYTES, ranks: int = 1) -> fits.Room:
    return fits.Room("the host", free_bytes, total_bytes, ranks)


@pytest.mark.parametrize("samples", [numbered(), Decoded()], ids=["arrays", "decoded"])
def test_what_does_not_fit_is_said_before_it_is_copied(samples: Any) -> None:
    assert fits.set_bytes(samples) == SET_BYTES
    fits.check_fits("host", samples, room(SET_BYTES))
    with pytest.raises(ValidationError, match=r"data: host: 23 .* 0\.00 GiB free; use data: disk"):
        fits.check_fits("host", samples, room(SET_BYTES - 1))
    fits.check_fits("host", samples, room(SET_BYTES, 3 * SET_BYTES, ranks=3))
    with pytest.raises(ValidationError, match=r"each of 3 ranks, .* fewer ranks a node"):
        fits.check_fits("host", samples, room(SET_BYTES, 3 * SET_BYTES - 1, ranks=3))


@pytest.mark.parametrize("kind", ["device", "host"])
def test_feeds_ask_whether_it_fits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.feed import torch_feed

    monkeypatch.setattr(torch_feed, "host_room", lambda: room(1))
    samples = Decoded()
    with pytest.raises(ValidationError, match=f"data: {kind}: "), feeding(kind, samples):
        pass
    assert samples.read == [0]
    with feeding("disk", samples) as made:
        made.next()


def test_the_room_of_a_host_counts_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 1), ("WORLD_SIZE", 8), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 4)):
        monkeypatch.setenv(name, str(value))
    found = fits.host_room()
    assert found.ranks == 4
    assert 0 < found.free_bytes <= found.total_bytes


@pytest.mark.parametrize("order", ["shuffled", "streams"])
@pytest.mark.parametrize("table", [4, 64])
def test_indices_made_ahead_are_the_shards(
    order: Order, table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step over tables and epochs, and wherever the feed is told to go."""
    monkeypatch.setattr(torch_feed, "_INDICES", table)
    shard = make_shard(order, COUNT, 2, 0, 2, 7)
    ahead = torch_feed.IndicesAhead(make_shard(order, COUNT, 2, 0, 2, 7), CPU)
    try:
        for position in [*range(14), 3, 4, 12, 0, *range(9, 22)]:
            assert ahead.at(position).tolist() == shard.at(position).tolist()
    finally:
        ahead.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("indices")]


def test_a_batch_for_a_captured_step_is_left_to_be_gathered() -> None:
    shards = [make_shard("shuffled", COUNT, 4, 0, 1, 7) for _ in range(2)]
    plain = torch_feed.make_feed("device", numbered(), shards[0], CPU)
    picked = torch_feed.make_feed("device", numbered(), shards[1], CPU, picked=True)
    for _ in range(8):
        batch, left = plain.next(), picked.next()
        assert isinstance(left, torch_feed.Picked)
        for mine, other in zip(batch, left, strict=True):
            assert torch.equal(mine, other)
    assert left.arrays[0].shape == (COUNT, 2, 3)
