"""Reading ahead: in order, bounded, and with nothing left over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.feed.loader import BatchLoader
from harness.feed.shard import Shard

WAIT_S = 120.0  # never reached unless something is broken


def shard() -> Shard:
    return Shard(23, 4, 1, 2, seed=3)


@contextmanager
def loading(
    read: Callable[[np.ndarray], object], workers: int, prefetch: int = 2
) -> Iterator[BatchLoader[object]]:
    loader = BatchLoader(read, shard(), workers, prefetch)
    try:
        yield loader
    finally:
        loader.close()


def threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("hvdscale-loader")}


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(0, 3),
    prefetch=st.integers(1, 3),
    seeks=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=4),
    hold_s=st.sampled_from([0.0, 1e-3]),
)
def test_batches_come_in_order_wherever_it_goes(
    workers: int, prefetch: int, seeks: list[tuple[int, int]], hold_s: float
) -> None:
    """Workers finish out of turn: the earlier the step, the longer it takes."""
    wanted = [shard().at(step) for step in range(20)]
    turns = iter(range(1000))

    def read(indices: np.ndarray) -> np.ndarray:
        time.sleep(hold_s * (next(turns) % 2 == 0))
        return indices.copy()

    with loading(read, workers, prefetch) as loader:
        assert (loader.position, loader.steps_per_epoch) == (0, 2)
        for take, to in [*seeks, (5, 0)]:
            start = loader.position
            for step in range(start, start + take):
                np.testing.assert_array_equal(loader.next(), wanted[step])
                assert loader.position == step + 1
            loader.seek(to)
            assert loader.position == to
    assert not threads()


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (3, 2)])
def test_no_more_is_read_than_the_bound(workers: int, prefetch: int) -> None:
    read: list[np.ndarray] = []
    full = threading.Event()
    bound = workers + prefetch

    def count(indices: np.ndarray) -> np.ndarray:
        read.append(indices)
        if len(read) >= bound + taken:
            full.set()
        return indices

    taken = 1
    with loading(count, workers, prefetch) as loader:
        assert read == []  # nothing before it is asked for
        for taken in (1, 2, 3):
            full.clear()
            loader.next()
            assert full.wait(WAIT_S) or len(read) == bound + taken
            time.sleep(0.02)  # too many would come now
            assert len(read) == bound + taken


def test_without_workers_a_batch_is_read_when_asked_for_by_who_asks() -> None:
    read: list[str] = []

    def remember(indices: np.ndarray) -> np.ndarray:
        read.append(threading.current_thread().name)
        return indices

    with loading(remember, workers=0) as loader:
        loader.next()
        loader.next()
        assert read == [threading.current_thread().name] * 2
        assert not threads()


def test_workers_read_at_the_same_time() -> None:
    """Two reads that wait for each other."""
    both = threading.Barrier(2, timeout=WAIT_S)

    def meet(indices: np.ndarray) -> int:
        return both.wait()

    with loading(meet, workers=2) as loader:
        assert {loader.next(), loader.next()} == {0, 1}
        both.abort()  # a third read waits for a fourth that nobody asked for


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_is_raised_by_next_of_its_batch_and_can_be_got_over(workers: int) -> None:
    bad = shard().at(2)
    broken = True

    def read(indices: np.ndarray) -> np.ndarray:
        if broken and np.array_equal(indices, bad):
            raise OSError("cannot read it")
        return indices.copy()

    with loading(read, workers) as loader:
        loader.next()
        loader.next()
        for _ in range(2):
            with pytest.raises(OSError, match="cannot read it"):
                loader.next()
            assert loader.position == 2
        broken = False
        np.testing.assert_array_equal(loader.next(), bad)
        np.testing.assert_array_equal(loader.next(), shard().at(3))


def test_after_seek_and_close_nothing_is_read_any_more() -> None:
    """Both wait for what is being read, and drop what waits to be read."""
    started, release = threading.Event(), threading.Event()
    reading: list[int] = []
    done: list[int] = []

    def slow(indices: np.ndarray) -> np.ndarray:
        reading.append(1)
        if len(reading) == 2:  # the first one read ahead
            started.set()
            assert release.wait(WAIT_S)
        done.append(1)
        return indices

    with loading(slow, workers=1, prefetch=3) as loader:
        loader.next()
        assert started.wait(WAIT_S)
        waiting = list(loader._ahead)[1:]

        def let_go() -> None:  # once `seek` has dropped what only waits to be read
            deadline = time.monotonic() + WAIT_S
            while not all(one.cancelled() for one in waiting) and time.monotonic() < deadline:
                time.sleep(0.01)
            release.set()

        helper = threading.Thread(target=let_go)
        helper.start()
        loader.seek(7)
        assert len(reading) == len(done) == 2
        np.testing.assert_array_equal(loader.next(), shard().at(7))
        loader.close()
        after = len(done)
        assert len(reading) == after
        assert not threads()
        helper.join()
        loader.close()
        with pytest.raises(ValueError, match="closed"):
            loader.next()
