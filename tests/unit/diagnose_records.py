"""Records of launches whose ranks' phases are given, with the raw steps beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness.analysis.diagnose import Diagnosis, Finding, diagnose
from harness.analysis.results import load_results
from harness.config import RunConfig
from harness.record import STEP_COLUMNS, AllReduce, Phases, RunRecord
from harness.store.raw import parquet_bytes, raw_path
from tests.factories import record, write_results

MS = 1e-3
STEPS = 20  # marked, of each rank
SIZE = 613_764

#: One rank's phases in milliseconds: a number, or one a step.
Rank = Mapping[str, Any]


@dataclass(frozen=True)
class Kept:
    """A record, and its raw marked steps."""

    record: RunRecord
    steps: pa.Table | None


def rank(
    data: Any = 0.1, forward: Any = 4.0, backward: Any = 5.0, sync: Any = 0.0, update: Any = 0.5
) -> Rank:
    """Return a rank's phases in milliseconds."""
    return {
        "data_s": data,
        "forward_s": forward,
        "backward_s": backward,
        "exposed_sync_s": sync,
        "update_s": update,
    }


def launch(
    made: RunConfig,
    ranks: Sequence[Rank],
    block: int = 0,
    *,
    between: float = 0.0,
    isolated: float | None = None,
    factor: float = 1.0,
    raw: bool = True,
    **parts: Any,
) -> Kept:
    """Return a launch; ``between`` is what lies between steps, ``factor`` multiplies all times."""
    columns = [
        {name: np.full(STEPS, MS * factor) * np.asarray(value) for name, value in one.items()}
        for one in ranks
    ]
    for one in columns:
        one["step_s"] = sum(one.values()) + between * MS * factor
    reduced = len(ranks) > 1
    exposed = np.stack([one["exposed_sync_s"] for one in columns])
    for at, one in enumerate(columns):
        one["transfer_s"] = exposed.min(axis=0)
        one["wait_s"] = exposed[at] - one["transfer_s"]
    phases = _phases(columns, reduced)
    step_s = float(np.mean([one["step_s"] for one in columns]))
    found = {
        "throughput": made.global_batch / step_s,
        "phases": phases,
        "allreduce": None if isolated is None else _allreduce(isolated * MS * factor, len(ranks)),
        "overheads": {},
    }
    one = record(made, block, **(found | parts))
    return Kept(one, _table(columns, reduced) if raw else None)


def blocks(made: RunConfig, ranks: Sequence[Rank], count: int = 3, **more: Any) -> list[Kept]:
    """Return launches of several blocks, each a little slower than the one before."""
    return [launch(made, ranks, b, factor=1 + b / 100, **more) for b in range(count)]


def written(folder: Path, kept: Iterable[Kept]) -> Path:
    """Write a results folder with its raw steps and return it."""
    sealed, files = [], []
    for one in kept:
        done = one.record
        if one.steps is not None:
            data = parquet_bytes(one.steps)
            digest = hashlib.sha256(data).hexdigest()
            done = done.model_copy(update={"steps_sha256": digest}).sealed()
            files.append((done.run_id, digest, data))
        sealed.append(done)
    write_results(folder, sealed)
    for run_id, digest, data in files:
        raw_path(folder / "runs", run_id, "steps", digest).write_bytes(data)
    return folder


def diagnosed(folder: Path, kept: Iterable[Kept], worst: int = 1) -> Diagnosis:
    """Write a folder and return the diagnosis of its worst point."""
    return diagnose(load_results(written(folder, kept)), worst)[0]


def finding(one: Diagnosis, limiter: str, kind: str = "lost") -> Finding:
    """Return the finding of a limiter."""
    (found,) = [f for f in one.findings if (f.limiter, f.kind) == (limiter, kind)]
    return found


def first(one: Diagnosis) -> Finding:
    """Return what is named first."""
    return one.findings[0]


def changed(kept: Kept, **parts: Any) -> Kept:
    """Return a launch with other fields of its record."""
    return replace(kept, record=kept.record.model_copy(update=parts).sealed())


def _phases(columns: Sequence[Mapping[str, Any]], reduced: bool) -> Phases:
    means = {name: float(np.mean([one[name] for one in columns])) for name in columns[0]}
    step_s = means.pop("step_s")
    names = ("data_s", "forward_s", "backward_s", "exposed_sync_s", "update_s")
    total = sum(means[name] for name in names)
    if not reduced:
        means |= dict.fromkeys(("exposed_sync_s", "transfer_s", "wait_s"))
    return Phases(steps=STEPS, step_s=step_s, sum_s=total, **means)


def _allreduce(time_s: float, ranks: int) -> AllReduce:
    rate = SIZE / time_s
    return AllReduce(
        bytes=SIZE,
        iterations=30,
        latency_p50_s=time_s,
        latency_p99_s=2 * time_s,
        algbw_bytes_per_s=rate,
        busbw_bytes_per_s=rate * 2 * (ranks - 1) / ranks,
    )


def _table(columns: Sequence[Mapping[str, Any]], reduced: bool) -> pa.Table:
    absent = () if reduced else ("exposed_sync_s", "transfer_s", "wait_s")
    tables = []
    for number, one in enumerate(columns):
        values: dict[str, Any] = {
            "instrument": ["phases"] * STEPS,
            "rank": [number] * STEPS,
            "step": list(range(STEPS)),
        }
        for name in STEP_COLUMNS[3:]:
            there = name in one and name not in absent
            values[name] = pa.array(one[name].tolist() if there else [None] * STEPS, pa.float64())
        tables.append(pa.table(values))
    return pa.concat_tables(tables)
