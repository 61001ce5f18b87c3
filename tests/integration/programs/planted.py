"""Mark steps as they are and steps with a planted cost; tell each rank's phases of both.

``planted.py SPEC late``: rank 1 sleeps in every second step, before its first gradient.
``planted.py SPEC link INTERFACE RATE``: each rank limits its own end of the link to RATE bits/s;
the ranks' clocks are compared over it, rank 1's with a planted offset and drift.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from harness import affinity
from harness.engines.api import PHASES, Engine, World
from harness.engines.registry import create
from harness.feed.shard import Feed, Shard
from harness.measure import clocks, phases
from harness.ranks import find_place
from harness.spec import RunSpec
from workloads import registry

DELAY_S = 0.06  # three times what a busy machine adds to a phase of these steps, and more
BURST_BYTES = 16_000
OFFSET_S, DRIFT = 1000.0, 1e-4  # of rank 1's clock, as it is told
WARM_STEPS = 5
LATE_STEPS = 80
LINK_STEPS = 12


@dataclass(frozen=True)
class Rank:
    """One rank, ready to run steps."""

    engine: Engine
    world: World
    step: Any  # a TorchStep: its private parts are where costs are planted
    feed: Feed

    def marked(self, steps: int) -> phases.Marked:
        """Return this rank's phases of some steps."""
        return phases.run_marked(self.step, self.feed.next, self.engine, steps)


def main() -> None:
    spec = RunSpec.read(Path(sys.argv[1]))
    place = find_place(os.environ)
    assert place is not None
    affinity.bind(spec.resolved, place.rank)  # on one machine, whatever hosts it plays
    engine = create(spec.config, spec.resolved)
    world = engine.start()
    rank = joined(spec, engine, world)
    rank.marked(WARM_STEPS)
    go_first()
    kind, *arguments = sys.argv[2:]
    answer = {"late": late, "link": link}[kind](rank, *arguments)
    answer["backend"] = engine.proof().proven
    Path(spec.log_dir, f"rank-{world.rank}.json").write_text(json.dumps(answer))
    engine.barrier()
    engine.stop()


def go_first() -> None:
    """Let no other program of this machine take a rank's core, where this user may forbid it.

    The ranks are in a session of their own, so its scheduling group is not the caller's.
    """
    group = Path("/proc/self/autogroup")
    with suppress(PermissionError):
        for thread in os.listdir("/proc/self/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), -20)
        if group.exists():
            group.write_text("-20")


def joined(spec: RunSpec, engine: Engine, world: World) -> Rank:
    """Make the workload's step and feed as a launch does."""
    config = spec.config
    workload = registry.create(config.workload.name, config.workload.options, spec.data_dir)
    if world.rank == 0:
        workload.prepare()
    engine.barrier()
    samples = workload.train()
    shard = Shard(len(samples), config.rank_batch, world.rank, world.size, config.seed)
    step = engine.build(workload.parts("torch", config.seed), 1e-3)
    return Rank(engine, world, step, engine.feed("device", samples, shard))


def late(rank: Rank) -> dict[str, Any]:
    """Mark steps in which rank 1 comes late, in turn with others; look at its clock, too."""
    before = clocks.exchange(rank.engine, rank.world)
    with slow_backward(rank.step, DELAY_S if rank.world.rank == 1 else 0.0):
        marked = rank.marked(LATE_STEPS)
    after = clocks.exchange(rank.engine, rank.world)
    arrived = clocks.RankClock(before, after, marked.ready_s[1::2])
    ranks = rank.engine.gather(arrived)
    check = clocks.summarise(ranks)
    arrivals_s = np.stack([one.arrivals_s() for one in ranks])
    return {
        "plain": by_phase(marked.columns[0::2]),
        "planted": by_phase(marked.columns[1::2]),
        "clocks": check.model_dump() if check is not None else None,
        "waits_s": (arrivals_s.max(axis=0) - arrivals_s).tolist(),
    }


@contextmanager
def slow_backward(step: Any, delay_s: float) -> Iterator[None]:
    """Sleep at the start of every second backward pass: no gradient of this rank is there yet."""
    forward = step._forward
    delays_s = cycle([0.0, delay_s])

    def slowed(inputs: Any, targets: Any) -> Any:
        loss = forward(inputs, targets)
        delay_s = next(delays_s)
        loss.register_hook(lambda gradient: time.sleep(delay_s))
        return loss

    step._forward = slowed
    try:
        yield
    finally:
        step._forward = forward


def link(rank: Rank, interface: str, rate: str) -> dict[str, Any]:
    """Blocks over the link as it is, and over the limited one."""
    host = clocks.Host(f"host {rank.world.rank}", f"kernel {rank.world.rank}")

    def clock() -> float:
        now_s = time.perf_counter()
        return now_s + rank.world.rank * (OFFSET_S + DRIFT * now_s)

    def compared() -> clocks.Exchange:
        return clocks.exchange(rank.engine, rank.world, clock=clock, host=host)

    here = clocks.this_host()
    before = compared()
    plain = rank.marked(LINK_STEPS)
    after = compared()
    with limited(interface, int(rate)):
        rank.engine.barrier()
        rank.marked(2)  # what had left before the limit was there
        planted = rank.marked(LINK_STEPS)
        rank.engine.barrier()
    truth_s = before.at_s - (before.at_s - rank.world.rank * OFFSET_S) / (
        1 + rank.world.rank * DRIFT
    )
    return {
        "plain": by_phase(plain.columns),
        "planted": by_phase(planted.columns),
        "bytes": rank.step.wire_bytes,
        "exchanges": [asdict(before), asdict(after)],
        "true_offset_s": truth_s,
        "host": asdict(here),
    }


@contextmanager
def limited(interface: str, bits_per_s: int) -> Iterator[None]:
    """Let no more than ``bits_per_s`` leave this namespace by ``interface``."""
    qdisc = ["dev", interface, "root"]
    shape = ["tbf", "rate", f"{bits_per_s}bit", "burst", str(BURST_BYTES), "latency", "400ms"]
    subprocess.run(["tc", "qdisc", "add", *qdisc, *shape], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", *qdisc], check=True)


def by_phase(columns: np.ndarray) -> dict[str, list[float]]:
    """Return the columns of ``phases.Marked`` by name."""
    return {
        name: column.tolist() for name, column in zip(("step_s", *PHASES), columns.T, strict=True)
    }


if __name__ == "__main__":
    main()
