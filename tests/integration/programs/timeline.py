"""Keep Horovod's timeline of some steps; tell what is in it, and when its file came into being."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from harness.engines.api import Engine, World
from harness.engines.registry import create
from harness.feed.shard import Feed, Shard
from harness.measure import timeline
from harness.spec import RunSpec
from workloads import registry
from workloads.api import Workload

STALE = "left from before"


def main() -> None:
    spec = RunSpec.read(Path(sys.argv[1]))
    file, steps = spec.log_dir / "timeline.json", int(sys.argv[2])
    engine = create(spec.config, spec.resolved)
    world = engine.start()
    if world.rank == 0:
        file.write_text(STALE)
    workload = prepared(spec, engine, world)
    step = engine.build(workload.parts("torch", spec.config.seed), 1e-3)
    feed = feed_of(spec, workload, engine, world)
    step.run(feed.next())
    answer: dict[str, Any] = {"variable": os.environ.get("HOROVOD_TIMELINE")}
    answer["before"] = file.read_text()
    mine = timeline.run_timeline(step, feed, engine, world, steps, file)
    size_bytes = file.stat().st_size
    for _ in range(3):
        step.run(feed.next())
    engine.barrier()
    answer |= {
        "grew_bytes": file.stat().st_size - size_bytes,
        "reduced_steps": step.reduced().steps,
        "checksum": step.checksum(),
    }
    ranks = engine.gather(mine)
    if world.rank == 0:
        found, overhead, _ = timeline.summarise(ranks, file, steps)
        step_s = max(rank.timeline_s for rank in ranks)
        answer |= {"timeline": found.model_dump(), "overhead": overhead, "step_s": step_s}
    Path(spec.log_dir, f"rank-{world.rank}.json").write_text(json.dumps(answer))
    engine.barrier()
    engine.stop()


def prepared(spec: RunSpec, engine: Engine, world: World) -> Workload:
    workload = registry.create(
        spec.config.workload.name, spec.config.workload.options, spec.data_dir
    )
    if world.local_rank == 0:
        workload.prepare()
    engine.barrier()
    return workload


def feed_of(spec: RunSpec, workload: Workload, engine: Engine, world: World) -> Feed:
    samples = workload.train()
    batch, seed = spec.config.rank_batch, spec.config.seed
    shard = Shard(len(samples), batch, world.rank, world.size, seed)
    return engine.feed(spec.config.data, samples, shard)


if __name__ == "__main__":
    main()
