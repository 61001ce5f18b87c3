"""Ranks that run two loops in turns: Horovod's as a user writes it, and ``hvdscale bench``'s own.

Both train the same model on the same data (in memory) in the same processes, so that what differs
is the loop alone. Blocks are in the order ABBA: a machine that drifts favours neither.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from harness import affinity
from harness.engines.registry import create
from harness.feed.shard import Shard
from harness.measure.window import run_window
from harness.spec import RunSpec
from workloads import registry
from workloads.api import Workload

LEARNING_RATE = 4.7331e-4
SETTLE_STEPS = 20


class Bare:
    """A training loop with nothing of hvdscale around it."""

    def __init__(self, workload: Workload, batch: int) -> None:
        arrays = workload.train().arrays()
        assert arrays is not None
        self._inputs, self._targets = (torch.from_numpy(array.copy()) for array in arrays)
        self._batch = batch
        self._a_epoch = len(self._inputs) // (batch * hvd.size())
        self._generator = torch.Generator().manual_seed(1)
        self._order = torch.arange(len(self._inputs))
        self._step = 0
        parts = workload.parts("torch", 1)
        self._model, self._loss = parts.model, parts.loss
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(self._model.parameters(), lr=LEARNING_RATE),
            named_parameters=self._model.named_parameters(),
        )

    def train(self, steps: int) -> float:
        """Return the seconds that ``steps`` steps took this rank."""
        hvd.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            self._train_one()
        return time.perf_counter() - started

    def _train_one(self) -> None:
        k = self._step % self._a_epoch
        if k == 0:
            count = len(self._inputs)
            self._order = torch.randperm(count, generator=self._generator)
        start = (k * hvd.size() + hvd.rank()) * self._batch
        index = self._order[start : start + self._batch]
        self._step += 1
        self._optimizer.zero_grad()
        outputs = self._model(self._inputs.index_select(0, index))
        loss = self._loss(outputs, self._targets.index_select(0, index))
        loss.backward()
        self._optimizer.step()


def harness_loop(spec: RunSpec, engine: Any, workload: Workload) -> Callable[[int], float]:
    """Return the window of ``hvdscale bench`` as a function of its number of steps."""
    step = engine.build(workload.parts("torch", 1), LEARNING_RATE)
    samples = workload.train()
    shard = Shard(len(samples), spec.config.rank_batch, hvd.rank(), hvd.size(), 1)
    feed = engine.feed("device", samples, shard)
    return lambda steps: run_window(step, feed.next, engine, steps).wall_s


def main() -> None:
    spec = RunSpec.read(Path(sys.argv[1]))
    out, quads, block_s = Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    engine = create(spec.config, spec.resolved)
    world = engine.start()
    affinity.bind(spec.resolved, world.local_rank)
    options = spec.config.workload.options
    workload = registry.create("stress_strain", options, spec.data_dir)
    if world.local_rank == 0:
        workload.prepare()
    engine.barrier()
    bare = Bare(workload, spec.config.rank_batch).train
    bench = harness_loop(spec, engine, workload)
    bench(SETTLE_STEPS)
    pace_s = max(engine.gather(bare(SETTLE_STEPS))) / SETTLE_STEPS
    steps = math.ceil(block_s / pace_s)
    found: list[dict[str, float]] = []
    for _ in range(quads):
        wall_s = {"bare": 0.0, "bench": 0.0}
        for name, loop in (("bare", bare), ("bench", bench), ("bench", bench), ("bare", bare)):
            wall_s[name] += max(engine.gather(loop(steps)))
        found.append({name: 2 * steps / seconds for name, seconds in wall_s.items()})
    if world.rank == 0:
        out.write_text(json.dumps(found))
    engine.barrier()
    engine.stop()


if __name__ == "__main__":
    main()
