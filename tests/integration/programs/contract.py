"""Try every part of the engine contract on this rank and tell what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from harness import bench
from harness.engines.api import Engine, Step, World
from harness.engines.registry import create
from harness.feed.shard import Feed
from harness.measure import ablation, allreduce, phases
from harness.spec import RunSpec
from workloads.api import Workload


def main() -> None:
    spec = RunSpec.read(Path(sys.argv[1]))
    engine = create(spec.config, spec.resolved)
    world = engine.start()
    workload = bench.prepare(spec.config, spec.data_dir, engine, world)
    losses = losses_from_the_start(spec, engine, world, workload)
    parts = workload.parts(engine.framework, spec.config.seed)
    step = engine.build(parts, 1e-3)
    feed = bench.make_feed(spec.config, workload.info, workload.train(), engine, world)
    next_batch = feed.next
    answer = {
        "losses": losses,
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
    marked = phases.run_marked(step, next_batch, engine, 40)
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
    answer["asked_between"] = asked_between(step, feed, engine, workload)
    answer["slowed"] = slowed(step, feed)
    answer["threads"] = engine.facts()["threads"]
    Path(spec.log_dir, f"rank-{world.rank}.json").write_text(json.dumps(answer))
    engine.barrier()
    engine.stop()


def losses_from_the_start(
    spec: RunSpec, engine: Engine, world: World, workload: Workload
) -> list[float]:
    """Train a model of its own, as many steps as ``programs/losses.py`` is asked for."""
    parts = workload.parts(engine.framework, spec.config.seed)
    step = engine.build(parts, workload.info.learning_rate)
    feed = bench.make_feed(spec.config, workload.info, workload.train(), engine, world)
    return step.losses([step.run(feed.next()) for _ in range(int(sys.argv[2]))]).tolist()


def ablated(step: Step, feed: Feed, engine: Engine) -> dict[str, Any]:
    """Train on from one state twice: at once, and with an ablation in between."""
    before, position = step.snapshot(), feed.position
    at_once = trained(step, feed)
    step.restore(before)
    feed.seek(position)
    found = ablation.run_ablation(step, feed, engine, 20)
    return {
        "same": trained(step, feed) == at_once,
        "blocks": [len(found.with_s), len(found.without_s), found.steps],
        "seconds": [*found.with_s, *found.without_s],
    }


def trained(step: Step, feed: Feed) -> tuple[list[float], str]:
    losses = step.losses([step.run(feed.next()) for _ in range(4)])
    return losses.tolist(), step.checksum()


def asked_between(step: Step, feed: Feed, engine: Engine, workload: Workload) -> dict[str, Any]:
    """Ask for gradient, evaluation and weights; training goes on from the same state."""
    before, position, checksum = step.snapshot(), feed.position, step.checksum()
    at_once = trained(step, feed)
    step.restore(before)
    feed.seek(position)
    reduced = step.reduced()
    gradient = step.gradient(feed.next())
    local = engine.to_host(gradient).copy()
    engine.allreduce(gradient)
    feed.seek(position)
    metrics = step.evaluate(workload.test())
    weights = step.weights()
    return {
        "unchanged": (step.checksum(), step.reduced()) == (checksum, reduced),
        "same": trained(step, feed) == at_once,
        "local": local[:50].tolist(),
        "size": local.size,
        "sum": engine.to_host(gradient)[:50].tolist(),
        "metrics": metrics,
        "weights": sum(value.size for value in weights.values()),
    }


def slowed(step: Step, feed: Feed) -> list[bool]:
    """Say whether a step at a rate of zero, and then one at a rate, left the weights."""
    left = []
    for rate in (0.0, 1e-3):
        checksum = step.checksum()
        step.set_learning_rate(rate)
        step.run(feed.next())
        left.append(step.checksum() == checksum)
    return left


if __name__ == "__main__":
    main()
