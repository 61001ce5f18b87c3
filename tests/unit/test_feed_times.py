"""The passes over a feed: what is timed, in which order, and how ranks become one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config.models import RunConfig
from harness.engines.api import World
from harness.feed import cache
from harness.measure import feed_times
from harness.measure.feed_times import RankFeed, files_read, run_feed_times, summarise
from tests.unit.fake_clock import Clock
from tests.unit.fake_engine import FakeEngine, FakeStep
from workloads.api import ArraySamples

FILES = (Path("data"),)
ALONE = World(0, 1, 0, 1)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(feed_times, "time", made)
    return made


class CountingFeed:
    """Counts; each batch calls what it is told."""

    steps_per_epoch = 10

    def __init__(self, calls: list[str], batch: Callable[[], None] = lambda: None) -> None:
        self.position = 3
        self.taken: list[int] = []
        self._calls = calls
        self._batch = batch

    def next(self) -> None:
        self._batch()
        self.taken.append(self.position)
        self.position += 1
        if self._calls[-1] != "pass":
            self._calls.append("pass")

    def seek(self, position: int) -> None:
        self.position = position
        self._calls.append(f"seek {position}")

    def close(self) -> None:
        """Nothing to close."""


class Kernel:
    """Stands for the file cache: what it holds after each of ``shares``."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, calls: list[str], shares: Sequence[float | None]
    ) -> None:
        self.is_cold = False
        self._shares = list(shares)
        self._calls = calls
        monkeypatch.setattr(cache, "drop", self._drop)
        monkeypatch.setattr(cache, "release_maps", lambda files: calls.append("release"))
        monkeypatch.setattr(cache, "cached_share", lambda files: self._shares.pop(0))

    def _drop(self, files: Sequence[Path], limit_s: float) -> None:
        assert limit_s == feed_times.DROP_LIMIT_S
        self._calls.append("drop")
        self.is_cold = True


def run(
    calls: list[str], feed: CountingFeed, window_s: float = 1.0, world: World = ALONE, **more: Any
) -> RankFeed:
    step = FakeStep()
    step.calls = calls
    engine = FakeEngine(calls, **more)
    return run_feed_times(step, feed, engine, world, FILES, window_s)


def test_a_warm_and_a_cold_pass_over_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_times, "MAX_BATCHES", 7)
    calls: list[str] = []
    Kernel(monkeypatch, calls, [0.9, 0.1])
    feed = CountingFeed(calls)
    found = run(calls, feed)
    assert feed.taken == [*range(3, 10)] * 2
    assert feed.position == 3
    one_pass = ["synchronise", "barrier", "pass", "synchronise"]
    assert calls == [
        *["seek 3", *one_pass],
        *["seek 3", "release", "barrier", "drop", *one_pass],
        "seek 3",
    ]
    assert (found.batches, found.cold_batches) == (7, 7)
    assert (found.cached_warm, found.cached_cold) == (0.9, 0.1)


@pytest.mark.parametrize("share", [0.11, 1.0, None])
def test_no_cold_time_where_the_kernel_kept_the_files_or_does_not_tell(
    share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    Kernel(monkeypatch, calls, [1.0, share])
    feed = CountingFeed(calls)
    found = run(calls, feed)
    assert (found.cold_batches, found.cold_s) == (None, None)
    assert found.cached_cold == share
    assert len(feed.taken) == found.batches
    assert feed.position == 3


def test_one_rank_a_node_drops_and_the_fullest_node_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    Kernel(monkeypatch, calls, [])
    feed = CountingFeed(calls)
    # Of two nodes of two ranks, this is the second rank of the second node.
    others = [(True, 0.0), (False, None), (True, 0.2)]
    found = run(calls, feed, world=World(3, 4, 1, 2), others=others)
    assert "drop" not in calls
    assert "release" in calls
    assert (found.cached_warm, found.cached_cold, found.cold_s) == (0.2, 0.2, None)


def test_a_pass_ends_with_its_share_of_the_window_but_not_before_five_batches(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    calls: list[str] = []
    kernel = Kernel(monkeypatch, calls, [1.0, 0.0])

    def batch() -> None:
        clock.now_s += 0.03125 if kernel.is_cold else 0.001953125  # exact, as their sums are

    found = run(calls, CountingFeed(calls, batch), window_s=0.78)  # 78 ms a pass
    assert (found.batches, found.warm_s) == (40, 0.078125)
    assert (found.cold_batches, found.cold_s) == (5, 5 * 0.03125)


def test_a_pass_that_fails_leaves_the_feed_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    Kernel(monkeypatch, calls, [1.0])

    def broken() -> float:
        raise OSError("unreadable")

    feed = CountingFeed(calls, broken)
    with pytest.raises(OSError, match="unreadable"):
        run(calls, feed)
    assert calls[-1] == "seek 3"


def test_a_batch_is_the_mean_of_a_pass_over_ranks(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(bytes(500))
    samples = ArraySamples(np.zeros((10, 5), np.float32), np.zeros(10, np.int64))
    ranks = [RankFeed(10, 2.0, 5, 4.0, 1.0, 0.05), RankFeed(20, 6.0, 8, 8.0, 1.0, 0.05)]
    found = summarise(ranks, samples, 4, [file])
    assert found.warm_s == pytest.approx(0.25)
    assert found.cold_s == pytest.approx(0.9)
    assert (found.batches, found.cold_batches) == (10, 5)
    assert (found.batch_bytes, found.files, found.file_bytes) == (4 * 28, 1, 500)
    assert (found.cached_warm, found.cached_cold) == (1.0, 0.05)
    memory = summarise([RankFeed(10, 2.0)], samples, 4, [])
    assert (memory.files, memory.file_bytes) == (0, 0)
    assert (memory.cold_batches, memory.cold_s, memory.cached_cold) == (None, None, None)


@pytest.mark.parametrize(("data", "files"), [("device", ()), ("host", ()), ("disk", FILES)])
def test_only_the_disk_is_read_in_training(data: str, files: tuple[Path, ...]) -> None:
    samples = ArraySamples(np.zeros((1, 1)), np.zeros(1), FILES[0])
    config = RunConfig.model_validate(
        {"workload": {"name": "stress_strain"}, "engine": "none", "batch_size": 1, "data": data}
    )
    assert files_read(config, samples) == files
