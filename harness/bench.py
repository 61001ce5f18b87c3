"""One rank of one launch: workload, feed, engine and measurement put together, to a record.

Every rank runs this; rank 0 gathers and writes. An exception ends the rank with a traceback in its
log, and the launch fails as a whole: a launcher takes the other ranks down with it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness import affinity, instruments, provenance, ranks, raw, torch_cache, watchdog
from harness.clock import told_if_slow, utc_now
from harness.config.instruments import is_timeline
from harness.config.models import RunConfig, Train
from harness.engines.api import Engine, Step, World
from harness.engines.evidence import of_launch
from harness.errors import HarnessError
from harness.feed.shard import Feed
from harness.learning_rate import learning_rate
from harness.measure import allreduce, gate, seats, steadiness, window
from harness.provenance import packages
from harness.provenance.slurm import slurm_facts
from harness.record import BackendProof, DataSource, Placed, RunRecord, Window, WorkloadFacts
from harness.spec import Resolved, RunSpec
from harness.staging import DataPlace, stage
from workloads import registry
from workloads.api import Parts, Samples, Workload, WorkloadError, WorkloadInfo

if TYPE_CHECKING:
    import pyarrow as pa


TIMELINE = "timeline.json"


@dataclass(frozen=True)
class Start:
    """What there was before a framework was imported, and the cores this rank keeps to."""

    cores: tuple[int, ...]
    facts: Mapping[str, Any]  # provenance.at_start()


@dataclass(frozen=True)
class RankResult:
    """What one rank brings to rank 0."""

    window: window.RankWindow
    checksum: str
    found: instruments.RankFound
    proof: BackendProof
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """What a launch measured, on rank 0: the parts of a record, its raw steps and series."""

    fields: Mapping[str, Any]
    steps: pa.Table | None
    series: pa.Table | None = None


def run_spec(path: Path) -> int:
    """Run this rank of the launch described in ``path``; return the exit code."""
    spec = RunSpec.read(path)
    place = ranks.find_place(os.environ)
    rank = place.rank if place else 0
    _redirect_output(spec.log_dir / f"rank-{rank}.log")
    watchdog.start(spec.timeout_s)
    try:
        facts = provenance.at_start()
        cores = affinity.bind(spec.resolved, place.local_rank if place else 0)
        started_at = utc_now()
        with joined(spec.config, spec.resolved) as (engine, world):
            places = engine.gather((seats.here(world), packages.software()))
            placed = gate.check_placement([seat for seat, _ in places], spec.resolved)
            gate.check_software([versions for _, versions in places])
            measured = measure(
                spec.config,
                spec.resolved,
                DataPlace(spec.data_dir, spec.scratch),
                engine,
                world,
                Start(cores, facts),
                spec.log_dir / TIMELINE,
            )
            if measured is not None:
                _write(spec, started_at, measured, placed)
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

        if config.execution.compile and config.workload.framework == "torch":
            torch_cache.claim(os.environ)
        self._engine = create(config, resolved)

    def __enter__(self) -> tuple[Engine, World]:
        return self._engine, self._engine.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._engine.stop()


def measure(
    config: RunConfig,
    resolved: Resolved,
    place: DataPlace,
    engine: Engine,
    world: World,
    start: Start,
    timeline_file: Path,
) -> Measured | None:
    """Measure a point on all ranks; return the result on rank 0 and None on the others.

    ``timeline_file`` is written by rank 0 of a launch that is there for its timeline.
    """
    # The proof looks at what this first, short all-reduce has set up.
    allreduce.check_sum(engine, world)
    proofs = engine.gather(engine.proof())
    gate.check_backend(proofs, resolved)
    workload = prepare(config, place.shared, engine, world)
    folder, source = stage(workload.data_files(), place, engine, world)
    if folder != place.shared:
        workload = registry.create(config.workload.name, config.workload.options, folder)
    parts = workload.parts(config.workload.framework, config.seed)
    rate = learning_rate(config.learning_rate, workload.info, config.global_batch)
    step = engine.build(parts, rate)
    facts = _workload_facts(workload, parts, rate)
    samples = workload.train()
    with closing(make_feed(config, workload.info, samples, engine, world)) as feed:
        job = instruments.Job(config, engine, world, step, feed, samples)
        found = _measured(job, workload, facts, proofs, start, timeline_file)
    return None if found is None else _with_source(found, config, source)


def _with_source(found: Measured, config: RunConfig, source: DataSource | None) -> Measured:
    """Say where data was read; in provenance, too, where each step reads: then it is compared."""
    fields = {**found.fields, "data_source": source}
    if source is not None and config.data == "disk":
        read_from = "shared folder" if source.scratch is None else "scratch"
        fields["provenance"] = {**fields["provenance"], "data": {"read_from": read_from}}
    return replace(found, fields=fields)


def _measured(
    job: instruments.Job,
    workload: Workload,
    facts: WorkloadFacts,
    proofs: Sequence[BackendProof],
    start: Start,
    timeline_file: Path,
) -> Measured | None:
    """Run what the config asks for: a timeline, a training, or a window with its instruments."""
    config, engine, world, step = job.config, job.engine, job.world, job.step
    if is_timeline(config):
        return _timeline(job, timeline_file, proofs, start, facts)
    if config.train is not None:
        # By hand a launch has no folder of its own.
        folder = timeline_file.parent if timeline_file.name else None
        return _training(job, config.train, workload, folder, proofs, start, facts)
    with instruments.sampled(job) as sampler:
        warm = window.warm_up(step, job.feed.next, engine, config.measure)
        steps = window.planned_steps(config.measure, warm.step_s)
        timed = window.run_window(step, job.feed.next, engine, steps)
        checksum = _checked(job, timed)
        found = instruments.run(job, timed, sampler)
    results = engine.gather(
        RankResult(
            window=timed,
            checksum=checksum,
            found=found,
            proof=proofs[world.rank],
            facts=_rank_facts(engine, start),
        )
    )
    if world.rank != 0:
        return None
    return _summarise(job, warm, results, facts, engine.versions())


def _timeline(
    job: instruments.Job,
    file: Path,
    proofs: Sequence[BackendProof],
    start: Start,
    facts: WorkloadFacts,
) -> Measured | None:
    """Keep the engine's own account of some steps; no window, so no source of speedup."""
    from harness.measure import timeline

    wanted = job.config.measure.timeline_steps
    mine = timeline.run_timeline(job.step, job.feed, job.engine, job.world, wanted, file)
    gate.check_checksums(job.engine.gather(job.step.checksum()))
    ranks_found = job.engine.gather((mine, _rank_facts(job.engine, start)))
    if job.world.rank != 0:
        return None
    found, overhead, error = timeline.summarise([one for one, _ in ranks_found], file, wanted)
    fields = {
        "kind": "timeline",
        "workload": facts,
        "backend": of_launch(proofs),
        "timeline": found,
        "overheads": {"timeline": overhead},
        "overhead_errors": {"timeline": error},
        "provenance": provenance.collect([one for _, one in ranks_found], job.engine.versions()),
    }
    return Measured(fields, None)


def _training(
    job: instruments.Job,
    train: Train,
    workload: Workload,
    folder: Path | None,
    proofs: Sequence[BackendProof],
    start: Start,
    facts: WorkloadFacts,
) -> Measured | None:
    """Train to the end instead of measuring a window."""
    from harness import training

    found = training.run_training(
        training.trainee(
            job.config, train, workload, job.engine, job.world, job.step, job.feed, folder
        )
    )
    ranks_facts = job.engine.gather(_rank_facts(job.engine, start))
    if job.world.rank != 0:
        return None
    fields = {
        "kind": "train",
        "workload": facts,
        "backend": of_launch(proofs),
        "training": found,
        "provenance": provenance.collect(ranks_facts, job.engine.versions()),
    }
    return Measured(fields, None)


def _rank_facts(engine: Engine, start: Start) -> Mapping[str, Any]:
    return provenance.of_rank(
        start.cores,
        engine.resolved.cores_per_rank,
        device_uuid=engine.device_uuid(),
        started=start.facts,
        engine=engine.facts(),
    )


def _checked(job: instruments.Job, timed: window.RankWindow) -> str:
    """Let a record count only if it is right; return the checksum that all ranks have."""
    windows = job.engine.gather(timed)
    checksums = job.engine.gather(job.step.checksum())
    gate.check_window(
        windows,
        checksums,
        gradient_bytes=job.step.gradient_bytes,
        gradient_allreduce=job.step.gradient_allreduce,
    )
    return str(checksums[job.world.rank])


def prepare(config: RunConfig, data_dir: Path, engine: Engine, world: World) -> Workload:
    """Return the workload with its data there, on all ranks."""
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


def make_feed(
    config: RunConfig, info: WorkloadInfo, samples: Samples, engine: Engine, world: World
) -> Feed:
    """Return what gives this rank its batches of ``samples``."""
    from harness.feed.shard import make_shard

    shard = make_shard(
        info.order, len(samples), config.rank_batch, world.rank, world.size, config.seed
    )
    return engine.feed(config.data, samples, shard)


def _workload_facts(workload: Workload, parts: Parts, rate: float) -> WorkloadFacts:
    return WorkloadFacts(
        train_samples=workload.train_size(),
        parameters=parts.parameters,
        gradient_bytes=parts.gradient_bytes,
        flops_per_sample=parts.flops_per_sample,
        learning_rate=rate,
    )


def _summarise(
    job: instruments.Job,
    warm: window.WarmUp,
    results: list[RankResult],
    facts: WorkloadFacts,
    versions: Mapping[str, str],
) -> Measured:
    summary = _window_summary(job.config, job.step, warm, results)
    found = [result.found for result in results]
    series = instruments.series(found)
    fields = {
        "workload": facts,
        "backend": of_launch([result.proof for result in results]),
        "window": summary,
        **instruments.summarise(job, found, summary, series),
        "provenance": provenance.collect([r.facts for r in results], versions),
    }
    window_s: list[NDArray[np.float64] | None] = [result.window.step_s for result in results]
    plain = {"none": window_s} | instruments.raw_blocks(found)
    marked = [one.marked for one in found if one.marked is not None]
    steps = raw.step_table(plain, marked, synchronised=job.step.gradient_allreduce)
    return Measured(fields, steps, series)


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
        steadiness=steadiness.judge([w.step_s for w in windows]),
    )


def _write(spec: RunSpec, started_at: str, measured: Measured, placed: Placed) -> None:
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
        slurm=slurm_facts(os.environ),
        placed=placed,
        **measured.fields,
    )
    Store.open(spec.results).commit(record, measured.steps, measured.series)


def _redirect_output(path: Path) -> None:
    """Send everything this process prints, its libraries too, to the rank's own log."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
