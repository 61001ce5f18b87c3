"""Train some steps and tell the losses; ``broken`` gives every rank the same shard."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness import bench, ranks
from harness.engines.api import World
from harness.engines.registry import create
from harness.spec import RunSpec


def main() -> None:
    spec = RunSpec.read(Path(sys.argv[1]))
    steps, broken = int(sys.argv[2]), sys.argv[3:] == ["broken"]
    engine = create(spec.config, spec.resolved)
    world = engine.start()
    workload = bench.prepare(spec.config, spec.data_dir, engine, world)
    parts = workload.parts(engine.framework, spec.config.seed)
    step = engine.build(parts, workload.info.learning_rate)
    seen = World(0, world.size, 0, world.local_size) if broken else world
    next_batch = bench.make_feed(spec.config, workload.info, workload.train(), engine, seen).next
    losses = step.losses([step.run(next_batch()) for _ in range(steps)])
    answer = {"losses": losses.tolist(), "checksum": step.checksum(), "rank": world.rank}
    Path(spec.log_dir, f"rank-{world.rank}.json").write_text(json.dumps(answer))
    engine.barrier()
    engine.stop()


if __name__ == "__main__":
    assert ranks is not None
    main()
