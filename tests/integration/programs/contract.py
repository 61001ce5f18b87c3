"""Try every part of the engine contract on this rank and tell what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from harness import bench
from harness.engines.registry import create
from harness.measure import ablation, allreduce, phases
from harness.spec import RunSpec


def main() -> None:
    spec = RunSpec.read(Path(sys.argv[1]))
    engine = create(spec.config, spec.resolved)
    world = engine.start()
    workload = bench.prepare(spec.config, spec.data_dir, engine, world)
    parts = workload.parts("torch", spec.config.seed)
    step = engine.build(parts, 1e-3)
    feed = bench.make_feed(spec.config, workload, engine, world)
    next_batch = feed.next
    answer = {
        "world": [world.rank, world.size],
        "gathered": engine.gather({"rank": world.rank}),
        "proof": engine.proof().model_dump(),
        "checksum_start": step.checksum(),
        "gradient_allreduce": step.gradient_allreduce,
        "gradient_bytes": step.gradient_bytes,
    }
    for _ in range(3):
        step.run(next_batch())
    answer["checksum_synchronised"] = step.checksum()
    answer["reduced"] = [step.reduced().steps, step.reduced().bytes]
    marked = phases.run_marked(step, next_batch, engine, 6)
    answer["phases"] = marked.columns.tolist()
    answer["checksum_marked"] = step.checksum()
    times = allreduce.run_isolated(engine, world, 4096)
    answer["isolated"] = times.tolist()
    buffer = engine.make_buffer(64)
    engine.fill(buffer, 2.0 + world.rank)
    engine.allreduce(buffer)
    answer["sum"] = np.unique(engine.to_host(buffer)).tolist()
    for _ in range(2):
        step.run(next_batch(), sync=False)
    answer["checksum_alone"] = step.checksum()
    step.run(next_batch())  # a synchronised step still works after unsynchronised ones
    answer["reduced_end"] = [step.reduced().steps, step.reduced().bytes]
    answer["ablated"] = ablated(step, feed, engine)
    Path(spec.log_dir, f"rank-{world.rank}.json").write_text(json.dumps(answer))
    engine.barrier()
    engine.stop()


def ablated(step: object, feed: object, engine: object) -> dict[str, object]:
    """Train on from one state twice: at once, and with an ablation in between."""

    def train() -> tuple[list[float], str]:
        losses = step.losses([step.run(feed.next()) for _ in range(4)])
        return losses.tolist(), step.checksum()

    before, position = step.snapshot(), feed.position
    at_once = train()
    step.restore(before)
    feed.seek(position)
    found = ablation.run_ablation(step, feed, engine, 20)
    return {
        "same": train() == at_once,
        "blocks": [len(found.with_s), len(found.without_s), found.steps],
        "seconds": [*found.with_s, *found.without_s],
    }


if __name__ == "__main__":
    main()
