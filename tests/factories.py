"""Synthetic records and results folders: the shape of real ones, with numbers one can predict.

A step of batch b takes ``0.5 ms + b · 2 µs`` and, where gradients are reduced, an exposed sync of
``latency · log2(2N)`` per step, with a jump where a second node is used. Noise is multiplicative:
a drift that all launches of a block share, and a jitter of each launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.config import RunConfig, run_id
from harness.config.instruments import timeline_config
from harness.config.models import Measure
from harness.record import (
    Ablation,
    AllReduce,
    BackendProof,
    Phases,
    RunError,
    RunRecord,
    Status,
    Steadiness,
    Timeline,
    Window,
    WorkloadFacts,
)
from harness.spec import BlockRef, Resolved
from harness.store import Store

TRAIN_SAMPLES = 750_000
PARAMETERS = 153_441
LATENCY_S = {"mpi": 150e-6, "gloo": 260e-6, "nccl": 90e-6, "mpi-host": 180e-6}
PROVENANCE: dict[str, Any] = {
    "harness": {"version": "0.1.0", "commit": "0" * 40, "dirty": False},
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "horovod": "0.28.1", "pyarrow": "26.0.0"},
    "versions": {"torch": "2.13.0"},
    "kernel": "6.1.0",
    "cpu_model": "Test CPU 3000",
    "cores": 64,
    "hosts": ["node0"],
    "ranks": [{"host": "node0", "pid": 4711, "cores": [0], "threads": 1}],
    "environment": {"OMP_NUM_THREADS": "1"},
    "executable": "/venv/bin/python",
}


def config(engine: str = "horovod", n: int = 1, batch: int = 75, **more: Any) -> RunConfig:
    """Return a config of the stress-strain job; ``more`` are keys of RunConfig."""
    keys: dict[str, Any] = {
        "workload": "stress_strain",
        "engine": engine,
        "placement": n,
        "cores_per_rank": 1,
    }
    sized = "global_batch_size" if more.get("scaling") == "strong" else "batch_size"
    return RunConfig.model_validate(keys | {sized: batch} | more)


def placement_of(made: RunConfig, node: int) -> tuple[int, ...]:
    """Return devices per node, nodes of ``node`` devices being filled one after the other."""
    if made.placement.devices:
        return made.placement.devices
    full, rest = divmod(made.world_size, node)
    return (node,) * full + ((rest,) if rest else ())


def step_times_s(made: RunConfig, nodes: int) -> tuple[float, float]:
    """Return (step, exposed sync in it), in seconds and without noise."""
    compute = 0.5e-3 + made.rank_batch * 2e-6
    if made.world_size == 1:
        return compute * (1.1 if made.engine == "horovod" else 1.0), 0.0
    latency = LATENCY_S.get(made.backend or "mpi", 200e-6)
    sync = latency * math.log2(2 * made.world_size) + (nodes - 1) * 2 * latency
    return compute * 1.1 + sync, sync


def record(
    made: RunConfig,
    repeat: int = 0,
    *,
    factor: float = 1.0,
    is_base: bool = False,
    allocation: str = "local:node0",
    node: int = 8,
    sweep: str = "synthetic",
    attempt: int = 1,
    order: int = 0,
    provenance: dict[str, Any] | None = None,
    throughput: float | None = None,
    sequential: bool = False,
    **parts: Any,
) -> RunRecord:
    """Return a good record; ``factor`` multiplies its throughput, ``throughput`` replaces it.

    ``parts`` are fields of the record, in place of what is made here.
    """
    placement = placement_of(made, node)
    step_s, sync_s = step_times_s(made, len(placement))
    rate = throughput if throughput is not None else made.global_batch / step_s * factor
    block = BlockRef(
        repeat=repeat, allocation=allocation, is_base=is_base, order=order, sequential=sequential
    )
    whole = RunRecord(
        run_id=run_id(made, repeat),
        attempt=attempt,
        status="ok",
        sweep=sweep,
        block=block,
        config=made,
        resolved=_resolved(made, placement),
        started_at=f"2026-01-02T03:{repeat:02d}:{order:02d}Z",
        ended_at=f"2026-01-02T03:{repeat:02d}:{order:02d}Z",
        workload=WorkloadFacts(
            train_samples=TRAIN_SAMPLES,
            parameters=PARAMETERS,
            gradient_bytes=4 * PARAMETERS,
            flops_per_sample=7e6,
            learning_rate=4.7331e-4,
        ),
        backend=BackendProof(
            requested=made.backend, proven=_backend(made), controller=None, evidence={}
        ),
        window=_window(made, rate),
        phases=_phases(made, step_s / factor, sync_s / factor),
        overheads={"phases": 0.01},
        allreduce=_allreduce(made, sync_s),
        provenance=PROVENANCE if provenance is None else provenance,
    )
    return whole.model_copy(update=parts).sealed()


def steady(**more: Any) -> Steadiness:
    """Return what is said of a window that nothing is wrong with."""
    plain = {"segments": 20, "change": 0.001, "p_value": 0.8, "drifting": False,
             "outliers": 0, "outlier_time_share": 0.0}  # fmt: skip
    return Steadiness(**(plain | more))


def with_steadiness(one: RunRecord, **more: Any) -> RunRecord:
    """Return a record whose window is ``steady(**more)``."""
    assert one.window is not None
    window = one.window.model_copy(update={"steadiness": steady(**more)})
    return one.model_copy(update={"window": window}).sealed()


def ablation(difference_s: float, exposed_sync_s: float) -> Ablation:
    """Return an ablation with that difference."""
    return Ablation(
        block_steps=50,
        with_s=(2e-3,) * 6,
        without_s=(2e-3 - difference_s,) * 6,
        difference_s=difference_s,
        error_s=0.1e-3,
        exposed_sync_s=exposed_sync_s,
        interference_s=difference_s - exposed_sync_s,
    )


def timeline(made: RunConfig, *, overhead: float = 0.02, **more: Any) -> RunRecord:
    """Return the record of the launch for the timeline of ``made``: it has no window."""
    own = timeline_config(made, Measure(instruments=("timeline",)))
    assert own is not None
    found = Timeline(
        steps=20, step_s=10.2e-3, plain_step_s=10e-3, negotiation_s=1.5e-3,
        queue_s=40e-6, copy_in_s=30e-6, allreduce_s=600e-6,
        copy_out_s=20e-6, cycles=2.5, tensors=10.0, allreduces=1.5, tensors_fused=10 / 1.5,
        file="timeline.json",
    )  # fmt: skip
    parts = {"kind": "timeline", "window": None, "phases": None, "allreduce": None,
             "timeline": found, "overheads": {"timeline": overhead}}  # fmt: skip
    return record(own, **(parts | more))


def failure(
    made: RunConfig,
    repeat: int = 0,
    *,
    status: Status = "failed",
    cause: str = "rank 1: killed by SIGKILL, probably out of memory",
    attempt: int = 1,
    node: int = 8,
    is_base: bool = False,
    sweep: str = "synthetic",
) -> RunRecord:
    """Return the record of a launch that gave no measurement."""
    return RunRecord(
        run_id=run_id(made, repeat),
        attempt=attempt,
        status=status,
        sweep=sweep,
        block=BlockRef(repeat=repeat, allocation="local:node0", is_base=is_base),
        config=made,
        resolved=_resolved(made, placement_of(made, node)),
        started_at=f"2026-01-02T03:{repeat:02d}:59Z",
        ended_at=f"2026-01-02T03:{repeat:02d}:59Z",
        error=RunError(cause=cause, exit_code=137, rank_tails={"1": ("Killed",)}),
        provenance=PROVENANCE,
    ).sealed()


def records(
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    backends: Sequence[str] = ("mpi", "gloo"),
    batches: Sequence[int] = (75, 700),
    blocks: int = 3,
    *,
    noise: float = 0.02,
    base: str | None = "none",
    seed: int = 1,
    node: int = 8,
    **more: Any,
) -> list[RunRecord]:
    """Return the records of a whole sweep: ``blocks`` of a base and of every point each."""
    random = np.random.default_rng(seed)
    made: list[RunRecord] = []
    for repeat in range(blocks):
        drift = float(np.exp(random.normal(0, 2 * noise)))
        launches = [(config(base, 1, k, **more), True) for k in batches if base]
        launches += [
            (config("horovod", n, k, backend=b, **more), False)
            for b in backends
            for k in batches
            for n in counts
        ]
        for order, (launch, is_base) in enumerate(launches):
            jitter = float(np.exp(random.normal(0, noise)))
            made.append(
                record(
                    launch, repeat, factor=drift * jitter, is_base=is_base, node=node, order=order
                )
            )
    return made


def write_results(folder: Path, kept: Iterable[RunRecord]) -> Path:
    """Write a results folder as the store lays it out (without raw steps) and return it.

    The records are written directly: the store puts each on disk for good, which takes its time.
    """
    runs = Store.open(folder, create=True).runs
    for name, text in _files(kept):
        (runs / name).write_text(text, encoding="utf-8")
    return folder


def _files(kept: Iterable[RunRecord]) -> Iterator[tuple[str, str]]:
    for one in kept:
        suffix = "" if one.status == "ok" else f".attempt-{one.attempt}"
        yield f"{one.run_id}{suffix}.json", one.model_dump_json(indent=1)


def _backend(made: RunConfig) -> str | None:
    return None if made.engine == "none" else made.backend or "mpi"


def _resolved(made: RunConfig, placement: tuple[int, ...]) -> Resolved:
    backend = _backend(made)
    return Resolved(
        launcher=made.launcher or ("inline" if made.engine == "none" else "mpirun"),
        backend=backend,
        controller="mpi" if made.engine == "horovod" else None,
        placement=placement,
        hosts=tuple(f"node{i}" for i in range(len(placement))),
        device="cpu",
        cores_per_rank=1,
        bind=True,
    )


def _window(made: RunConfig, rate: float) -> Window:
    steps, n = 1000, made.world_size
    wall_s = steps * made.global_batch / rate
    return Window(
        steps=steps,
        warmup_steps=20,
        warmup_s=0.1,
        samples=steps * made.global_batch,
        wall_s=wall_s,
        rank_wall_s=(wall_s,) + (wall_s * 0.999,) * (n - 1),
        rank_started_at_s=(1.8e9,) * n,
        throughput_samples_per_s=rate,
        step_median_s=wall_s / steps,
        first_loss=0.1,
        last_loss=0.02,
        parameter_checksum="c0ffee",
        gradient_allreduce=n > 1,
        bytes_reduced=steps * 4 * PARAMETERS if n > 1 else 0,
    )


def _phases(made: RunConfig, step_s: float, sync_s: float) -> Phases:
    reduced = made.world_size > 1
    compute = step_s - sync_s
    return Phases(
        steps=50,
        step_s=step_s,
        data_s=0.05 * compute,
        forward_s=0.3 * compute,
        backward_s=0.55 * compute,
        exposed_sync_s=sync_s if reduced else None,
        transfer_s=0.7 * sync_s if reduced else None,
        wait_s=0.3 * sync_s if reduced else None,
        update_s=0.08 * compute,  # two hundredths are in no phase
        sum_s=0.98 * compute + (sync_s if reduced else 0.0),
    )


def _allreduce(made: RunConfig, sync_s: float) -> AllReduce | None:
    n, size = made.world_size, 4 * PARAMETERS
    if n == 1:
        return None
    latency = 0.6 * sync_s
    return AllReduce(
        bytes=size,
        iterations=30,
        latency_p50_s=latency,
        latency_p99_s=2 * latency,
        algbw_bytes_per_s=size / latency,
        busbw_bytes_per_s=size / latency * 2 * (n - 1) / n,
    )
