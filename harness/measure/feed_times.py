"""Bringing batches to the device with nothing else running, from a warm and a cold file cache.

Two passes over the batches that training would have next: with the file cache as training left it,
and after each node's kernel was asked to drop the files. The feed is put back where it was. Files
that were dropped stay out of the cache until they are read again, also for launches that follow;
those of a server of a network file system are not reached.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.config.models import RunConfig
from harness.engines.api import Engine, Step, World
from harness.feed import cache
from harness.feed.fits import set_bytes
from harness.feed.shard import Feed
from harness.record import FeedTimes
from workloads.api import Samples

SHARE = 0.1  # of the window's time, for one pass
MIN_BATCHES = 5
MAX_BATCHES = 200
DROP_LIMIT_S = 10.0  # of many small files the rest is left, and the cold pass with it
STILL_COLD = 0.1  # of the files in the cache, at most


@dataclass(frozen=True)
class RankFeed:
    """One rank's passes, and what its node's kernel held; None for what there was not."""

    batches: int
    warm_s: float  # of the whole pass
    cold_batches: int | None = None
    cold_s: float | None = None
    cached_warm: float | None = None
    cached_cold: float | None = None


def files_read(config: RunConfig, samples: Samples) -> tuple[Path, ...]:
    """Return the files that a launch's batches come from; none where the set is in memory."""
    return samples.files() if config.data == "disk" else ()


def run_feed_times(
    step: Step, feed: Feed, engine: Engine, world: World, files: Sequence[Path], window_s: float
) -> RankFeed:
    """Time both passes on this rank; ``window_s`` is how long the window took."""
    position = feed.position
    limit_s = SHARE * window_s
    try:
        feed.seek(position)  # what training has read ahead is no part of a pass
        cached_warm = _most_cached(engine, world, files)
        batches, warm_s = _pass(step, feed, engine, MAX_BATCHES, limit_s)
        feed.seek(position)
        cached_cold = _dropped(engine, world, files)
        if cached_cold is None or cached_cold > STILL_COLD:
            return RankFeed(batches, warm_s, None, None, cached_warm, cached_cold)
        cold_batches, cold_s = _pass(step, feed, engine, batches, limit_s)
    finally:
        feed.seek(position)
    return RankFeed(batches, warm_s, cold_batches, cold_s, cached_warm, cached_cold)


def _pass(step: Step, feed: Feed, engine: Engine, most: int, limit_s: float) -> tuple[int, float]:
    """Take batches one after the other; return how many, and the seconds until all are there."""
    batches = 0
    step.device_synchronise()
    engine.barrier()
    started_s = time.perf_counter()
    while batches < most:
        feed.next()
        batches += 1
        if batches >= MIN_BATCHES and time.perf_counter() - started_s >= limit_s:
            break
    step.device_synchronise()
    return batches, time.perf_counter() - started_s


def _dropped(engine: Engine, world: World, files: Sequence[Path]) -> float | None:
    """Have every node's kernel drop ``files``; return what it still holds of them."""
    cache.release_maps(files)
    engine.barrier()  # a page that any rank has mapped is not dropped
    if world.local_rank == 0:
        cache.drop(files, DROP_LIMIT_S)
    return _most_cached(engine, world, files)


def _most_cached(engine: Engine, world: World, files: Sequence[Path]) -> float | None:
    """Return the share of ``files`` that the node with most of it has in its cache, on all ranks.

    None where a node's kernel does not tell, or there are no files.
    """
    mine = cache.cached_share(files) if files and world.local_rank == 0 else None
    shares = [share for first, share in engine.gather((world.local_rank == 0, mine)) if first]
    told = [share for share in shares if share is not None]
    return max(told) if len(told) == len(shares) else None


def summarise(
    ranks: Sequence[RankFeed], samples: Samples, rank_batch: int, files: Sequence[Path]
) -> FeedTimes:
    """Return the passes of all ranks as means of a batch; ``rank_batch`` is of one rank."""
    cold = [
        (one.cold_batches, one.cold_s)
        for one in ranks
        if one.cold_batches is not None and one.cold_s is not None
    ]
    return FeedTimes(
        batches=min(one.batches for one in ranks),
        batch_bytes=set_bytes(samples) // len(samples) * rank_batch,
        files=len(files),
        file_bytes=cache.total_bytes(files),
        warm_s=float(np.mean([one.warm_s / one.batches for one in ranks])),
        cold_batches=min(count for count, _ in cold) if cold else None,
        cold_s=float(np.mean([cold_s / count for count, cold_s in cold])) if cold else None,
        cached_warm=ranks[0].cached_warm,
        cached_cold=ranks[0].cached_cold,
    )
