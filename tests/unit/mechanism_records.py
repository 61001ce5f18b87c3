"""Records of a sweep whose steps are made by the mechanism itself, with raw steps beside them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.config import RunConfig
from harness.measure.phases import Marked
from harness.raw import step_table
from harness.record import AllReduce, Phases, RunRecord
from harness.store.raw import parquet_bytes, raw_path
from tests import factories

BYTES = 4 * factories.PARAMETERS
NODE = 4  # devices
Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]


def still(_random: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """No jitter."""
    return np.zeros(shape)


@dataclass(frozen=True)
class World:
    """A cluster in which every step follows the mechanism."""

    compute_s: float = 10e-3
    per_sample_s: float = 0.0
    alpha_s: float = 20e-6
    bandwidth: float = 2e9
    across_alpha_s: float = 100e-6
    across_bandwidth: float = 1e9
    share: float = 0.5
    exchange_s: float = 30e-6
    cycle_ms: float = 1.0
    jitter: Draw = still
    common: Draw = still  # of all ranks in the same step
    steps: int = 60
    noise: float = 0.0  # of blocks' compute, relative
    engine: str = "horovod"
    raw: bool = True

    def ring_s(self, ranks: int) -> float:
        """Return an all-reduce in a flat ring, over the slower link."""
        here = ranks <= NODE
        alpha_s = self.alpha_s if here else self.across_alpha_s
        bandwidth = self.bandwidth if here else self.across_bandwidth
        return 2 * (ranks - 1) * alpha_s + 2 * (ranks - 1) / ranks * BYTES / bandwidth

    def transfer_s(self, ranks: int, backend: str) -> float:
        """Return the exposed part that no rank waits less for."""
        if self.engine == "ddp":
            return self.share * self.ring_s(ranks)
        law = ranks - 1 if backend == "gloo" else math.log2(ranks)
        return self.cycle_ms / 2e3 + self.exchange_s * law + self.share * self.ring_s(ranks)

    def step_s(self, ranks: int, backend: str = "mpi") -> float:
        """Return a step without jitter."""
        return self.compute_s + (self.transfer_s(ranks, backend) if ranks > 1 else 0.0)


def _marked(world: World, made: RunConfig, random: np.random.Generator, slow: float) -> NDArray:
    """Return (ranks, steps, 6): step, data, forward, backward, exposed sync, update."""
    n, backend = made.world_size, made.backend or "mpi"
    shape = (n, world.steps)
    own = (world.compute_s + world.per_sample_s * made.rank_batch) * slow
    off = world.jitter(random, shape)
    off = off + world.common(random, (1, world.steps))
    exposed = np.zeros(shape)
    if n > 1:
        exposed = off.max(0) - off + world.transfer_s(n, backend)
    parts = [0.05 * own, 0.3 * own + off, 0.55 * own, exposed, 0.1 * own]
    columns = [np.broadcast_to(part, shape) for part in parts]
    return np.stack([sum(columns), *columns], axis=-1)


def _phases(rows: NDArray, n: int) -> Phases:
    step, data, forward, backward, exposed, update = (float(x) for x in rows.mean((0, 1)))
    transfer = float(rows[..., 4].min(0).mean())
    return Phases(
        steps=rows.shape[1], step_s=step, sum_s=step, data_s=data, forward_s=forward,
        backward_s=backward, update_s=update, exposed_sync_s=exposed if n > 1 else None,
        transfer_s=transfer if n > 1 else None, wait_s=exposed - transfer if n > 1 else None,
    )  # fmt: skip


def _allreduce(world: World, n: int) -> AllReduce | None:
    if n == 1:
        return None
    cycle_s = 0.0 if world.engine == "ddp" else world.cycle_ms / 1e3
    seconds = cycle_s + world.ring_s(n)
    return AllReduce(
        bytes=BYTES, iterations=30, latency_p50_s=seconds, latency_p99_s=seconds,
        algbw_bytes_per_s=BYTES / seconds, busbw_bytes_per_s=BYTES / seconds * 2 * (n - 1) / n,
    )  # fmt: skip


def write_world(
    folder: Path,
    world: World,
    counts: Sequence[int] = (1, 2, 4),
    *,
    backend: str = "mpi",
    blocks: int = 3,
    batch: int = 75,
    seed: int = 1,
    extra: Sequence[RunRecord] = (),
    change: Callable[[RunRecord], RunRecord] = lambda one: one,
    **more: object,
) -> Path:
    """Write a sweep of ``world`` with a base and ``blocks`` of every point; return its folder."""
    random = np.random.default_rng(seed)
    kept: list[RunRecord] = list(extra)
    raw: dict[str, tuple[str, bytes]] = {}
    tuning = {"cycle_time_ms": world.cycle_ms, "controller": backend}
    for repeat in range(blocks):
        slow = 1.0 + world.noise * float(random.standard_normal())
        launches = [(factories.config("none", 1, batch, **more), True)]
        keys = more | ({"horovod": tuning} if world.engine == "horovod" else {})
        launches += [
            (factories.config(world.engine, n, batch, backend=backend, **keys), False)
            for n in counts
        ]
        for made, is_base in launches:
            rows = _marked(world, made, random, slow)
            n, step_s = made.world_size, float(rows[..., 0].mean())
            one = factories.record(
                made, repeat, is_base=is_base, node=NODE, throughput=made.global_batch / step_s,
                phases=_phases(rows, n), allreduce=_allreduce(world, n),
            )  # fmt: skip
            resolved = one.resolved.model_copy(
                update={"controller": backend if made.engine == "horovod" else None}
            )
            one = one.model_copy(update={"resolved": resolved})
            if world.raw:
                marked = [Marked(x, x[:, 0]) for x in rows]
                table = step_table({"none": [x[:, 0] for x in rows]}, marked, synchronised=n > 1)
                data = parquet_bytes(table)
                digest = hashlib.sha256(data).hexdigest()
                raw[one.run_id] = (digest, data)
                one = one.model_copy(update={"steps_sha256": digest})
            kept.append(change(one).sealed())
    factories.write_results(folder, kept)
    for run_id, (digest, data) in raw.items():
        raw_path(folder / "runs", run_id, "steps", digest).write_bytes(data)
    return folder


def quieter(world: World, noise: float) -> World:
    """Return the world with other noise."""
    return replace(world, noise=noise)
