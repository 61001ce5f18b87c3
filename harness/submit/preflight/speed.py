"""One device's training speed: ``python -m harness.submit.preflight.speed TASK RANK DEVICE``.

A program of its own, started by ``rank`` for every device of its node, all at once: clocks, power
and the processors are then shared as in the campaign, and eight devices take as long as one. The
nodes begin together, as far as their file system lets them know of each other.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import watchdog
from harness.engines.api import Step
from harness.engines.none_torch import NoneTorch
from harness.errors import HarnessError
from harness.feed.shard import Feed, make_shard
from harness.learning_rate import learning_rate
from harness.measure.window import warm_up
from harness.provenance import nccl
from harness.provenance.notes import Notes
from harness.store import write_atomic
from harness.submit.preflight.answers import Trained, ready_path, trained_path
from harness.submit.preflight.plan import Limits, Task
from harness.submit.preflight.record import Speed
from workloads import registry
from workloads.api import WorkloadError

_POLL_S = 0.05


def main(task: Task, rank: int, device: int) -> int:
    """Train the task's blocks and write the answer."""
    watchdog.start(task.timeout_s)
    config = task.config
    engine = NoneTorch(config, task.resolved)
    engine.prepare_device(device, rank)
    workload = registry.create(config.workload.name, config.workload.options, task.data_dir)
    workload.prepare()
    rate = learning_rate(config.learning_rate, workload.info, config.global_batch)
    step = engine.build(workload.parts("torch", config.seed), rate)
    samples = workload.train()
    shard = make_shard(workload.info.order, len(samples), config.rank_batch, 0, 1, config.seed)
    feed = engine.feed("device", samples, shard)
    warm = warm_up(step, feed.next, engine, config.measure)
    steps, blocks = block_plan(task.limits, warm.step_s)
    ready_path(task.folder, rank, device).touch()
    together(task.folder, len(task.nodes) * task.devices, task.limits)
    found = tuple(_block_s(step, feed, steps) for _ in range(blocks))
    feed.close()
    speed = Speed(device=device, batch=config.rank_batch, block_steps=steps, looks_step_s=(found,))
    answer = Trained(speed=speed, uuid=engine.device_uuid(), facts=_facts(engine.versions()))
    write_atomic(trained_path(task.folder, rank, device), answer.model_dump_json().encode())
    return 0


def _block_s(step: Step, feed: Feed, steps: int) -> float:
    """Return the seconds a step of one block, the device synchronised at both ends."""
    step.device_synchronise()
    started = time.perf_counter()
    for _ in range(steps):
        step.run(feed.next())
    step.device_synchronise()
    return (time.perf_counter() - started) / steps


def block_plan(limits: Limits, step_s: float) -> tuple[int, int]:
    """Return the steps of a block and how many blocks there are; pure."""
    step_s = max(step_s, 1e-6)
    steps = max(1, math.ceil(limits.block_s / step_s))
    return steps, max(limits.min_blocks, min(limits.blocks, int(limits.speed_s / (steps * step_s))))


def together(
    folder: Path, count: int, limits: Limits, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Wait until ``count`` programs are ready; False where patience ended first.

    By files (``ready_path``): nothing else connects nodes that may not reach each other.
    """
    deadline = clock() + limits.patience_s
    # Listing opens the folder, which makes a network file system look for others' new files.
    while sum(1 for entry in os.listdir(folder) if entry.startswith("ready-")) < count:
        if clock() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _facts(versions: Mapping[str, str]) -> dict[str, str]:
    """Name what is loaded here; torch by its own word, its package's is another one's."""
    loaded = Notes().take("nccl", nccl.collect)
    names = {"torch": "torch, as loaded", "torch_cuda": "CUDA of torch", "nccl": "NCCL of torch"}
    found = {title: versions[key] for key, title in names.items() if key in versions}
    return found | ({"NCCL, as loaded": str(loaded["version"])} if "version" in loaded else {})


if __name__ == "__main__":
    try:
        code = main(Task.read(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
    except (HarnessError, WorkloadError) as error:
        print(f"hvdscale: error: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)
