"""Records as a tidy table: one row a launch, flat columns with their units, nothing derived but sums.

What needs more than one launch (speedup, efficiency, intervals) is in ``scaling``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from harness.config.identity import canonical
from harness.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

#: Every column, with the kind that it has also where a table has no value in it.
COLUMNS: dict[str, str] = {
    "sweep": "string",
    "kind": "string",
    "run_id": "string",
    "attempt": "Int64",
    "status": "string",
    "cause": "string",  # of a launch that gave no measurement
    "allocation": "string",
    "repeat": "Int64",
    "order": "Int64",
    "is_base": "boolean",
    "started_at": "string",
    "ended_at": "string",
    "workload": "string",
    "framework": "string",
    "engine": "string",
    "backend": "string",  # in force, as the launcher resolved it
    "backend_requested": "string",  # by the config; missing where it was left open
    "backend_proven": "string",
    "controller": "string",
    "launcher": "string",
    "device": "string",
    "scaling": "string",
    "world_size": "Int64",
    "nodes": "Int64",
    "placement": "string",  # devices per node as resolved, "8+2"
    "batch_size": "Int64",  # declared: of a rank (weak)
    "global_batch_size": "Int64",  # declared: of all ranks (strong)
    "rank_batch": "Int64",
    "global_batch": "Int64",
    "cores_per_rank": "Int64",
    "train_samples": "Int64",
    "parameters": "Int64",
    "gradient_bytes": "Int64",
    "learning_rate": "Float64",  # in force
    "gradient_allreduce": "boolean",
    "steps": "Int64",
    "samples": "Int64",
    "wall_s": "Float64",
    "rank_wall_min_s": "Float64",
    "warmup_s": "Float64",
    "throughput_samples_per_s": "Float64",
    "epoch_s": "Float64",  # train_samples / throughput
    "step_median_s": "Float64",
    "first_loss": "Float64",
    "last_loss": "Float64",
    "bytes_reduced": "Int64",
    "phase_steps": "Int64",
    "phase_step_s": "Float64",
    "data_s": "Float64",
    "forward_s": "Float64",
    "backward_s": "Float64",
    "exposed_sync_s": "Float64",
    "transfer_s": "Float64",
    "wait_s": "Float64",
    "update_s": "Float64",
    "phase_overhead": "Float64",
    "allreduce_bytes": "Int64",
    "allreduce_p50_s": "Float64",
    "allreduce_p99_s": "Float64",
    "algbw_bytes_per_s": "Float64",
    "busbw_bytes_per_s": "Float64",
    "config": "string",  # JSON without defaults; what run_id hashes
    "provenance": "string",  # JSON of what two launches of one curve must share
}

#: Words of provenance that name hardware or software; a key with none of them is no part of it.
_SHARED = re.compile(
    r"cpu|gpu|accelerator|machine|kernel|os|platform|libc|glibc|python|torch|tensorflow|keras"
    r"|horovod|nccl|cuda|cudnn|driver|mpi|mpi4py|gloo|numpy|hvdscale|device|versions?|model"
)
#: Words that change from launch to launch on one machine, whatever else the key says.
_VOLATILE = re.compile(
    r"time|date|at|pid|host|hostname|hosts|load|free|used|available|utili[sz]ation|temperature"
    r"|power|clocks?|mhz|path|paths|file|files|env|environment|argv|command|cwd|user|uuid|serial"
    r"|bus|index|visible|affinity|count|libraries|maps|slurm|job|commit|dirty"
)
_SPLIT = re.compile(r"[^a-z0-9]+")


def frame(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return the table of ``records``, with every column of ``COLUMNS``, in their order."""
    return table_of([facts(record) for record in records])


def table_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows made by ``facts`` as a table with typed columns, in the order given."""
    import pandas as pd

    return pd.DataFrame(
        {name: pd.array([row.get(name) for row in rows], dtype=dtype) for name, dtype in COLUMNS.items()}
    )


def facts(record: RunRecord) -> dict[str, Any]:
    """Return one row: the columns of ``COLUMNS``; what was not measured is left out."""
    config, resolved, block = record.config, record.resolved, record.block
    identity = canonical(config)
    row: dict[str, Any] = {
        "sweep": record.sweep,
        "kind": record.kind,
        "run_id": record.run_id,
        "attempt": record.attempt,
        "status": record.status,
        "cause": record.error.cause if record.error else None,
        "allocation": block.allocation,
        "repeat": block.repeat,
        "order": block.order,
        "is_base": block.is_base,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "workload": config.workload.name,
        "framework": config.workload.framework,
        "engine": config.engine,
        "backend": resolved.backend,
        "backend_requested": config.backend,
        "backend_proven": record.backend.proven if record.backend else None,
        "controller": resolved.controller,
        "launcher": resolved.launcher,
        "device": resolved.device,
        "scaling": config.scaling,
        "world_size": resolved.world_size,
        "nodes": len(resolved.placement),
        "placement": "+".join(map(str, resolved.placement)),
        "batch_size": config.batch_size,
        "global_batch_size": config.global_batch_size,
        "rank_batch": config.rank_batch,
        "global_batch": config.global_batch,
        "cores_per_rank": resolved.cores_per_rank,
        "config": _json(identity),
        "provenance": _json(shared_provenance(record.provenance)),
    }
    row.update(_measured(record))
    return row


def shared_provenance(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return what two launches of one curve must have in common, flat: ``"gpu.name": "A100"``.

    Provenance is free-form and grows; kept is every leaf whose key names hardware or software and
    names nothing that changes between two launches on one machine.
    """
    kept: dict[str, str] = {}
    for key, value in _leaves(provenance, ()):
        name = ".".join(key)
        if _is_shared(name):
            kept[name] = str(value)
    return kept


@lru_cache(maxsize=4096)
def _is_shared(name: str) -> bool:
    words = [word for word in _SPLIT.split(name.lower()) if word]
    if any(_VOLATILE.fullmatch(word) for word in words):
        return False
    return any(_SHARED.fullmatch(word) for word in words)


def _leaves(data: Any, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(data, Mapping):
        for key in sorted(data, key=str):
            yield from _leaves(data[key], (*prefix, str(key)))
    elif isinstance(data, list | tuple):
        yield prefix, ", ".join(sorted({str(value) for value in data}))
    elif data is not None:
        yield prefix, data


def _measured(record: RunRecord) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if workload := record.workload:
        row |= {
            "train_samples": workload.train_samples,
            "parameters": workload.parameters,
            "gradient_bytes": workload.gradient_bytes,
            "learning_rate": workload.learning_rate,
        }
    if window := record.window:
        row |= {
            "gradient_allreduce": window.gradient_allreduce,
            "steps": window.steps,
            "samples": window.samples,
            "wall_s": window.wall_s,
            "rank_wall_min_s": min(window.rank_wall_s, default=None),
            "warmup_s": window.warmup_s,
            "throughput_samples_per_s": window.throughput_samples_per_s,
            "step_median_s": window.step_median_s,
            "first_loss": window.first_loss,
            "last_loss": window.last_loss,
            "bytes_reduced": window.bytes_reduced,
        }
    if record.workload and record.window:
        row["epoch_s"] = (
            record.workload.train_samples / record.window.throughput_samples_per_s
        )
    if phases := record.phases:
        renamed = {"steps": "phase_steps", "step_s": "phase_step_s", "overhead": "phase_overhead"}
        row |= {renamed.get(key, key): value for key, value in phases}
    if reduced := record.allreduce:
        row |= {
            "allreduce_bytes": reduced.bytes,
            "allreduce_p50_s": reduced.latency_p50_s,
            "allreduce_p99_s": reduced.latency_p99_s,
            "algbw_bytes_per_s": reduced.algbw_bytes_per_s,
            "busbw_bytes_per_s": reduced.busbw_bytes_per_s,
        }
    return row


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
