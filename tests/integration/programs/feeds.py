"""Read numbered samples by every way to the device; tell which ones came, and how fast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from harness.engines.api import Engine, World
from harness.engines.registry import create
from harness.feed.shard import make_shard
from harness.measure import feed_times
from harness.spec import RunSpec
from workloads.api import ArraySamples

COUNT, WIDTH, BATCH, EPOCHS = 1003, 1000, 50, 2


def main() -> None:
    spec = RunSpec.read(Path(sys.argv[1]))
    engine = create(spec.config, spec.resolved)
    world = engine.start()
    file = Path(spec.log_dir, "samples.npy")
    if world.rank == 0:
        index = np.arange(COUNT, dtype=np.float32)
        np.save(file, np.repeat(index[:, None], WIDTH, axis=1))
    engine.barrier()
    samples = ArraySamples(np.load(file, mmap_mode="r"), np.arange(COUNT), file)
    answer = {"seen": seen(engine, world, samples), "times": times(spec, engine, world, samples)}
    Path(spec.log_dir, f"rank-{world.rank}.json").write_text(json.dumps(answer))
    engine.barrier()
    engine.stop()


def seen(engine: Engine, world: World, samples: ArraySamples) -> dict[str, Any]:
    """Return this rank's samples by order and kind, epoch by epoch."""
    found: dict[str, Any] = {}
    for order in ("shuffled", "streams"):
        for kind in ("device", "host", "disk"):
            shard = make_shard(order, COUNT, BATCH, world.rank, world.size, seed=1)
            feed = engine.feed(kind, samples, shard)
            epochs: list[list[int]] = []
            for _ in range(EPOCHS):
                batches = [feed.next() for _ in range(feed.steps_per_epoch)]
                assert all((inputs[:, -1] == targets).all() for inputs, targets in batches)
                epochs.append([int(one) for _, targets in batches for one in targets])
            feed.close()
            found[f"{order} {kind}"] = epochs
    return found


def times(spec: RunSpec, engine: Engine, world: World, samples: ArraySamples) -> dict[str, Any]:
    """Return what a batch from the disk takes."""

    class Step:
        def device_synchronise(self) -> None:
            """A CPU has nothing queued."""

    shard = make_shard("shuffled", COUNT, BATCH, world.rank, world.size, seed=1)
    feed = engine.feed("disk", samples, shard)
    feed.seek(3)
    step: Any = Step()
    files = feed_times.files_read(spec.config, samples)
    mine = feed_times.run_feed_times(step, feed, engine, world, files, 1.0)
    assert feed.position == 3
    feed.close()
    return feed_times.summarise(engine.gather(mine), samples, BATCH, files).model_dump()


if __name__ == "__main__":
    main()
