"""Which samples a rank trains on: the global batches do not depend on how many ranks share them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.feed.shard import (
    Shard,
    StreamShard,
    epoch_offset,
    epoch_permutation,
    make_shard,
)
from workloads.api import Order

ORDERS = st.sampled_from(["shuffled", "streams"])
OFFSETS = [458, 213, 708, 309]  # pinned: of 1000 samples, seed 1, epochs 0 to 3


def batches(
    samples: int, batch: int, ranks: int, seed: int, steps: int, order: Order = "shuffled"
) -> list[list[np.ndarray]]:
    """Return the batch of each rank in each step: [step][rank]."""
    shards = [make_shard(order, samples, batch, rank, ranks, seed) for rank in range(ranks)]
    return [[shard.next() for shard in shards] for _ in range(steps)]


def test_rank_r_takes_its_part_of_the_permutation() -> None:
    order = epoch_permutation(100, seed=5, epoch=0)
    for k, of_ranks in enumerate(batches(100, batch=7, ranks=3, seed=5, steps=4)):
        for rank, found in enumerate(of_ranks):
            start = k * 7 * 3 + rank * 7
            np.testing.assert_array_equal(found, order[start : start + 7])


@given(
    batch=st.integers(1, 6),
    ranks=st.integers(1, 5),
    spare=st.integers(0, 40),
    seed=st.integers(0, 10**12),
    order=ORDERS,
)
def test_an_epoch_has_each_sample_at_most_once(
    batch: int, ranks: int, spare: int, seed: int, order: Order
) -> None:
    samples = batch * ranks + spare
    steps = make_shard(order, samples, batch, 0, ranks, seed).steps_per_epoch
    assert steps == samples // (batch * ranks)
    two = batches(samples, batch, ranks, seed, 2 * steps, order)
    for epoch in (two[:steps], two[steps:]):
        seen = np.concatenate(np.concatenate(epoch))
        assert len(seen) == steps * batch * ranks
        assert len(np.unique(seen)) == len(seen)
        assert seen.min() >= 0
        assert seen.max() < samples


@given(seed=st.integers(0, 1000), spare=st.integers(0, 11), order=ORDERS)
def test_the_global_batch_is_the_same_for_every_number_of_ranks(
    seed: int, spare: int, order: Order
) -> None:
    samples, whole = 36 + spare, 12
    steps = 2 * (samples // whole) + 1  # into the third epoch
    alone = [np.concatenate(step) for step in batches(samples, whole, 1, seed, steps, order)]
    for ranks in (2, 3, 4, 6, 12):
        shared = batches(samples, whole // ranks, ranks, seed, steps, order)
        for one, of_ranks in zip(alone, shared, strict=True):
            np.testing.assert_array_equal(np.concatenate(of_ranks), one)


@pytest.mark.parametrize("order", ["shuffled", "streams"])
def test_what_fills_no_global_batch_is_left_out_and_comes_in_another_epoch(order: Order) -> None:
    """10 samples in batches of 2 x 2: two are left out in each epoch, and not always the same."""
    steps = batches(10, batch=2, ranks=2, seed=1, steps=2 * 20, order=order)
    epochs = [set(np.concatenate(np.concatenate(steps[i : i + 2]))) for i in range(0, 40, 2)]
    assert all(len(epoch) == 8 for epoch in epochs)
    assert set.union(*epochs) == set(range(10))


def test_epochs_are_shuffled_anew_and_seeds_differ() -> None:
    first, second = epoch_permutation(50, 1, 0), epoch_permutation(50, 1, 1)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first.tolist() != second.tolist()
    assert first.tolist() != epoch_permutation(50, 2, 0).tolist()
    steps = batches(50, batch=25, ranks=1, seed=1, steps=4)
    np.testing.assert_array_equal(np.concatenate(np.concatenate(steps[2:])), second)


def test_the_order_is_the_same_on_every_machine() -> None:
    """Philox and ``Generator.permutation`` are stable; a change would part old from new runs."""
    assert epoch_permutation(10, seed=1, epoch=0).tolist() == [6, 0, 7, 9, 4, 1, 8, 5, 2, 3]


def test_streams_go_on_from_step_to_step_and_lie_side_by_side() -> None:
    """20 samples, 2 ranks of 3 streams: 3 steps; 2 samples before the offset are left out."""
    offset = epoch_offset(20, seed=1, epoch=0)
    found = np.array(batches(20, batch=3, ranks=2, seed=1, steps=3, order="streams"))
    ring = (offset + np.arange(18)) % 20
    np.testing.assert_array_equal(found.reshape(3, 6).T, ring.reshape(6, 3))
    left_out = set(range(20)) - set(found.ravel())
    assert left_out == {(offset - 1) % 20, (offset - 2) % 20}


@given(
    batch=st.integers(1, 5), ranks=st.integers(1, 4), spare=st.integers(0, 40), rank=st.integers(0)
)
def test_every_row_of_a_batch_is_followed_by_the_next_sample(
    batch: int, ranks: int, spare: int, rank: int
) -> None:
    samples = batch * ranks + spare
    shard = StreamShard(samples, batch, rank % ranks, ranks, seed=7)
    epoch = np.stack([shard.next() for _ in range(shard.steps_per_epoch)])
    np.testing.assert_array_equal(epoch[1:], (epoch[:-1] + 1) % samples)


def test_epochs_of_streams_begin_elsewhere_and_alike_on_every_machine() -> None:
    assert [epoch_offset(1000, seed=1, epoch=epoch) for epoch in range(4)] == OFFSETS
    assert epoch_offset(1000, seed=2, epoch=0) != OFFSETS[0]
    shard = StreamShard(1000, 1, 0, 1, seed=1)
    assert [shard.at(epoch * 1000)[0] for epoch in range(4)] == OFFSETS


@given(steps=st.lists(st.integers(0, 60), max_size=8), order=ORDERS)
def test_any_step_can_be_asked_for(steps: list[int], order: Order) -> None:
    shard = make_shard(order, 23, 4, 1, 2, seed=3)
    one_by_one = [shard.next() for _ in range(61)]
    for step in steps:
        np.testing.assert_array_equal(shard.at(step), one_by_one[step])
    assert shard.step == 61


@given(st.integers(0, 30), st.integers(1, 12), st.sampled_from(["shuffled", "streams"]))
def test_many_steps_at_once_are_the_single_ones(step: int, steps: int, order: Order) -> None:
    """Up to the end of the first one's epoch."""
    shard = make_shard(order, 23, 2, 1, 2, 7)
    rows = shard.rows(step, steps)
    left = shard.steps_per_epoch - step % shard.steps_per_epoch
    assert rows.shape == (min(steps, left), 2)
    for k, row in enumerate(rows):
        np.testing.assert_array_equal(row, shard.at(step + k))


def test_the_order_is_the_workloads() -> None:
    assert type(make_shard("shuffled", 12, 4, 0, 3, seed=1)) is Shard
    assert type(make_shard("streams", 12, 4, 0, 3, seed=1)) is StreamShard


def test_a_global_batch_larger_than_the_data_is_refused() -> None:
    Shard(12, batch=4, rank=0, world_size=3, seed=1)
    with pytest.raises(ValueError, match="a global batch of 12 from 11 samples"):
        Shard(11, batch=4, rank=0, world_size=3, seed=1)
