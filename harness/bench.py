"""One rank of one launch: workload, feed, engine and measurement put together, to a record.

Every rank runs this; rank 0 gathers and writes. An exception ends the rank with a traceback in its
log, and the launch fails as a whole: a launcher takes the other ranks down with it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness import affinity, provenance, ranks, watchdog
from harness.clock import told_if_slow, utc_now
from harness.config.models import LearningRate, RunConfig
from harness.engines.api import PHASES, Engine, Step, World
from harness.errors import HarnessError
from harness.measure import allreduce, gate, phases, window
from harness.record import STEP_COLUMNS, BackendProof, RunRecord, Window, WorkloadFacts
from harness.spec import Resolved, RunSpec
from workloads import registry
from workloads.api import Parts, Workload, WorkloadError, WorkloadInfo

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RankResult:
    """What one rank brings to rank 0."""

    window: window.RankWindow
    checksum: str
    phases: NDArray[np.float64] | None
    allreduce: NDArray[np.float64] | None
    proof: BackendProof
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """What a launch measured, on rank 0: the parts of a record, and its raw steps."""

    fields: Mapping[str, Any]
    steps: pa.Table


def run_spec(path: Path) -> int:
    """Run this rank of the launch described in ``path``; return the exit code."""
    spec = RunSpec.read(path)
    place = ranks.find_place(os.environ)
    rank = place.rank if place else 0
    _redirect_output(spec.log_dir / f"rank-{rank}.log")
    watchdog.start(spec.timeout_s)
    try:
        cores = affinity.bind(spec.resolved, place.local_rank if place else 0)
        started_at = utc_now()
        with joined(spec.config, spec.resolved) as (engine, world):
            measured = measure(spec.config, spec.resolved, spec.data_dir, engine, world, cores)
            if measured is not None:
                _write(spec, started_at, measured)
            engine.barrier()
    except (HarnessError, WorkloadError) as error:
        print(f"hvdscale: error: {error}", file=sys.stderr, flush=True)
        return 1
    except Exception:  # noqa: BLE001 - whatever it is, it goes into this rank's log
        traceback.print_exc()
        return 1
    return 0


class joined:
    """An engine's world, left again only after a success.

    After a failure a shutdown would wait for ranks that are not coming; the process just ends.
    """

    def __init__(self, config: RunConfig, resolved: Resolved) -> None:
        from harness.engines.registry import create

        self._engine = create(config, resolved)

    def __enter__(self) -> tuple[Engine, World]:
        return self._engine, self._engine.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._engine.stop()


def measure(
    config: RunConfig,
    resolved: Resolved,
    data_dir: Path,
    engine: Engine,
    world: World,
    cores: tuple[int, ...],
) -> Measured | None:
    """Measure a point on all ranks; return the result on rank 0 and None on the others."""
    # The proof looks at what this first, short all-reduce has set up.
    allreduce.check_sum(engine, world)
    proofs = engine.gather(engine.proof())
    gate.check_backend(proofs, resolved)
    workload = _prepare(config, data_dir, engine, world)
    parts = workload.parts(config.workload.framework, config.seed)
    rate = learning_rate(config.learning_rate, workload.info, config.global_batch)
    step = engine.build(parts, rate)
    next_batch = _feed(config, workload, engine, world)
    warm = window.warm_up(step, next_batch, engine, config.measure)
    steps = window.planned_steps(config.measure, warm.step_s)
    timed = window.run_window(step, next_batch, engine, steps)
    windows = engine.gather(timed)
    checksums = engine.gather(step.checksum())
    gate.check_window(
        windows,
        checksums,
        gradient_bytes=step.gradient_bytes,
        gradient_allreduce=step.gradient_allreduce,
    )
    results = engine.gather(
        RankResult(
            window=timed,
            checksum=checksums[world.rank],
            phases=_phases(config, step, next_batch, engine, steps),
            allreduce=_isolated(engine, world, step),
            proof=proofs[world.rank],
            facts=provenance.of_rank(cores, resolved.cores_per_rank),
        )
    )
    if world.rank != 0:
        return None
    facts = _workload_facts(workload, parts, rate)
    return _summarise(config, step, warm, results, facts, engine.versions())


def learning_rate(wanted: LearningRate, info: WorkloadInfo, global_batch: int) -> float:
    """Return the rate in force: base × (global batch / base batch) to the rule's power."""
    base = wanted.base if wanted.base is not None else info.learning_rate
    base_batch = wanted.base_batch if wanted.base_batch is not None else info.learning_rate_batch
    ratio = global_batch / base_batch
    return base * {"none": 1.0, "sqrt": sqrt(ratio), "linear": ratio}[wanted.rule]


def _prepare(config: RunConfig, data_dir: Path, engine: Engine, world: World) -> Workload:
    workload = registry.create(config.workload.name, config.workload.options, data_dir)
    # One rank a node makes the data; the others wait here, not at a lock in a file system.
    if world.local_rank == 0:
        # A sweep made it before; by hand the first launch does.
        with told_if_slow(_say, f"making the data of {config.workload.name} in {data_dir}"):
            workload.prepare()
    engine.barrier()
    return workload


def _say(text: str) -> None:
    print(f"hvdscale: {text}", file=sys.stderr, flush=True)


def _feed(config: RunConfig, workload: Workload, engine: Engine, world: World) -> Callable[[], Any]:
    from harness.feed.shard import Shard

    samples = workload.train()
    shard = Shard(len(samples), config.rank_batch, world.rank, world.size, config.seed)
    return engine.feed(config.data, samples, shard).next


def _phases(
    config: RunConfig, step: Step, next_batch: Callable[[], Any], engine: Engine, steps: int
) -> NDArray[np.float64] | None:
    if "phases" not in config.measure.instruments:
        return None
    return phases.run_marked(step, next_batch, engine, phases.marked_steps(steps))


def _isolated(engine: Engine, world: World, step: Step) -> NDArray[np.float64] | None:
    if not step.gradient_allreduce:
        return None
    return allreduce.run_isolated(engine, world, step.wire_bytes)


def _workload_facts(workload: Workload, parts: Parts, rate: float) -> WorkloadFacts:
    return WorkloadFacts(
        train_samples=workload.train_size(),
        parameters=parts.parameters,
        gradient_bytes=parts.gradient_bytes,
        flops_per_sample=parts.flops_per_sample,
        learning_rate=rate,
    )


def _summarise(
    config: RunConfig,
    step: Step,
    warm: window.WarmUp,
    results: list[RankResult],
    facts: WorkloadFacts,
    versions: Mapping[str, str],
) -> Measured:
    summary = _window_summary(config, step, warm, results)
    marked = [r.phases for r in results if r.phases is not None]
    isolated = [r.allreduce for r in results if r.allreduce is not None]
    fields = {
        "workload": facts,
        "backend": results[0].proof,
        "window": summary,
        "phases": phases.summarise(
            marked,
            window_step_s=summary.wall_s / summary.steps,
            synchronised=step.gradient_allreduce,
        )
        if marked
        else None,
        "allreduce": allreduce.summarise(isolated, step.wire_bytes) if isolated else None,
        "provenance": provenance.collect([r.facts for r in results], versions),
    }
    return Measured(fields, _step_table(results, step.gradient_allreduce))


def _window_summary(
    config: RunConfig, step: Step, warm: window.WarmUp, results: list[RankResult]
) -> Window:
    windows = [result.window for result in results]
    steps = len(windows[0].step_s)
    wall_s = max(w.wall_s for w in windows)
    losses = np.stack([w.losses for w in windows]).mean(axis=0)
    samples = steps * config.rank_batch * len(windows)
    return Window(
        steps=steps,
        warmup_steps=warm.steps,
        warmup_s=warm.wall_s,
        samples=samples,
        wall_s=wall_s,
        rank_wall_s=tuple(w.wall_s for w in windows),
        rank_started_at_s=tuple(w.started_at_s for w in windows),
        throughput_samples_per_s=samples / wall_s,
        step_median_s=float(np.median(np.stack([w.step_s for w in windows]))),
        first_loss=float(losses[0]),
        last_loss=float(losses[-1]),
        parameter_checksum=results[0].checksum,
        gradient_allreduce=step.gradient_allreduce,
        bytes_reduced=windows[0].reduced_bytes,
    )


def _step_table(results: list[RankResult], synchronised: bool) -> pa.Table:
    """Return the raw steps of all ranks, ``STEP_COLUMNS``; null where not measured."""
    import pyarrow as pa

    tables = []
    for rank, result in enumerate(results):
        tables.append(_rows("none", rank, {"step_s": result.window.step_s}))
        if result.allreduce is not None:
            tables.append(_rows("allreduce", rank, {"step_s": result.allreduce}))
    marked = [r.phases for r in results if r.phases is not None]
    for rank, columns in enumerate(_phase_columns(marked, synchronised)):
        tables.append(_rows("phases", rank, columns))
    return pa.concat_tables(tables)


def _phase_columns(
    marked: list[NDArray[np.float64]], synchronised: bool
) -> list[dict[str, NDArray[np.float64]]]:
    ranks_columns = [dict(zip(("step_s", *PHASES), each.T, strict=True)) for each in marked]
    if not ranks_columns:
        return []
    exposed = np.stack([columns["exposed_sync_s"] for columns in ranks_columns])
    transfer_s, wait_s = phases.split_sync(exposed)
    for rank, columns in enumerate(ranks_columns):
        if synchronised:  # NaN where the engine cannot mark it, and null in the file
            columns |= {"transfer_s": transfer_s, "wait_s": wait_s[rank]}
        else:
            del columns["exposed_sync_s"]
    return ranks_columns


def _rows(instrument: str, rank: int, columns: Mapping[str, NDArray[np.float64]]) -> pa.Table:
    import pyarrow as pa

    count = len(columns["step_s"])
    arrays = {
        "instrument": _repeated(instrument, count),
        "rank": _column(np.full(count, rank, dtype=np.int32), pa.int32()),
        "step": _column(np.arange(count, dtype=np.int32), pa.int32()),
    }
    for name in STEP_COLUMNS[3:]:
        values = columns.get(name)
        absent = values is None or bool(np.isnan(values).all())
        arrays[name] = pa.nulls(count, pa.float64()) if absent else _column(values, pa.float64())
    return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))


def _repeated(text: str, count: int) -> pa.Array:
    import pyarrow as pa

    offsets = np.arange(count + 1, dtype=np.int32) * len(text.encode())
    data = pa.py_buffer(text.encode() * count)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), data)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a numpy array as a column.

    By its buffer: ``pyarrow.array`` imports pandas to see whether it was given one of its own, and
    that is a second more for every launch.
    """
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.copy())])


def _write(spec: RunSpec, started_at: str, measured: Measured) -> None:
    from harness.store import Store

    record = RunRecord(
        run_id=spec.run_id,
        attempt=spec.attempt,
        status="ok",
        sweep=spec.sweep,
        block=spec.block,
        config=spec.config,
        resolved=spec.resolved,
        started_at=started_at,
        ended_at=utc_now(),
        argv=spec.argv,
        **measured.fields,
    )
    Store.open(spec.results).commit(record, measured.steps)


def _redirect_output(path: Path) -> None:
    """Send everything this process prints, its libraries too, to the rank's own log."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
