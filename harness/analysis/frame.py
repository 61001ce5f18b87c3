"""Records as a tidy table: one row a launch, flat columns with their units.

What needs more than one launch (speedup, efficiency, intervals) is in ``scaling``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from harness.config import RunConfig
from harness.config.identity import canonical
from harness.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

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

_OF_RECORD = ("sweep", "kind", "run_id", "attempt", "status", "started_at", "ended_at")
_OF_BLOCK = ("allocation", "repeat", "order", "is_base")
_OF_CONFIG = ("engine", "scaling", "batch_size", "global_batch_size")
_OF_RESOLVED = ("backend", "controller", "launcher", "device", "cores_per_rank")
_OF_WORKLOAD = ("train_samples", "parameters", "gradient_bytes", "learning_rate")
_OF_WINDOW = (
    "gradient_allreduce",
    "steps",
    "samples",
    "wall_s",
    "warmup_s",
    "throughput_samples_per_s",
    "step_median_s",
    "first_loss",
    "last_loss",
    "bytes_reduced",
)
_OF_ALLREDUCE = {
    "bytes": "allreduce_bytes",
    "latency_p50_s": "allreduce_p50_s",
    "latency_p99_s": "allreduce_p99_s",
    "algbw_bytes_per_s": "algbw_bytes_per_s",
    "busbw_bytes_per_s": "busbw_bytes_per_s",
}
_RENAMED = {"steps": "phase_steps", "step_s": "phase_step_s", "overhead": "phase_overhead"}

#: Provenance that two launches of one curve must have in common: hardware, and software that is
#: part of what is measured. Hosts, processes, paths and the environment are not: they differ from
#: launch to launch, and what matters of an environment is in the config.
SHARED_PROVENANCE = (
    "harness.version", "python", "packages", "versions", "kernel", "cpu_model", "cores",
)  # fmt: skip
#: Reads and writes records, and is in no step.
_UNINVOLVED = frozenset({"packages.pyarrow"})


def frame(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return the table of ``records``, with every column of ``COLUMNS``, in their order."""
    return to_pandas(arrow_table([facts(record.model_dump(mode="json")) for record in records]))


def arrow_table(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = COLUMNS
) -> pa.Table:
    """Return rows made by ``facts`` as a table of ``columns``, in the order given."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "Int64": pa.int64(),
        "Float64": pa.float64(),
        "boolean": pa.bool_(),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Return a table in pandas, with types that know "missing" from NaN."""
    import pandas as pd
    import pyarrow as pa

    kinds = {
        pa.string(): pd.StringDtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    made: pd.DataFrame = table.to_pandas(types_mapper=kinds.get)
    return made


def facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row: the columns of ``COLUMNS``; what was not measured is missing.

    ``record`` is a record's plain data, as its file has it (``RunRecord.model_dump(mode="json")``):
    making ten thousand typed records only to flatten them again would take half of the time.
    """
    config, resolved, block = record["config"], record["resolved"], record["block"]
    world_size = sum(resolved["placement"])
    rank_batch = config["batch_size"] or config["global_batch_size"] // world_size
    row = {
        "cause": (record.get("error") or {}).get("cause"),
        "workload": config["workload"]["name"],
        "framework": config["workload"]["framework"],
        "backend_requested": config["backend"],
        "backend_proven": (record.get("backend") or {}).get("proven"),
        "world_size": world_size,
        "nodes": len(resolved["placement"]),
        "placement": "+".join(map(str, resolved["placement"])),
        "rank_batch": rank_batch,
        "global_batch": rank_batch * world_size,
        "config": _identity(_json(config)),
        "provenance": _json(shared_provenance(record.get("provenance") or {})),
    }
    row |= {key: record[key] for key in _OF_RECORD}
    row |= {key: block[key] for key in _OF_BLOCK}
    row |= {key: config[key] for key in _OF_CONFIG}
    row |= {key: resolved[key] for key in _OF_RESOLVED}
    return row | _measured(record)


def shared_provenance(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return what two launches of one curve must have in common: ``{"packages.torch": "2.13.0"}``.

    Keys that an older record does not have are missing in what is returned, too.
    """
    kept: dict[str, str] = {}
    for name in SHARED_PROVENANCE:
        first, _, second = name.partition(".")
        value = provenance.get(first)
        if second:
            value = value.get(second) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            kept |= {f"{name}.{key}": str(inner) for key, inner in value.items()}
        elif value is not None:
            kept[name] = str(value)
    return {key: value for key, value in kept.items() if key not in _UNINVOLVED}


def _measured(record: Mapping[str, Any]) -> dict[str, Any]:
    workload, window = record.get("workload"), record.get("window")
    row: dict[str, Any] = {}
    if workload:
        row |= {key: workload[key] for key in _OF_WORKLOAD}
    if window:
        row |= {key: window[key] for key in _OF_WINDOW}
        row["rank_wall_min_s"] = min(window["rank_wall_s"], default=None)
    if workload and window:
        row["epoch_s"] = workload["train_samples"] / window["throughput_samples_per_s"]
    if phases := record.get("phases"):
        row |= {_RENAMED.get(key, key): value for key, value in phases.items()}
    if reduced := record.get("allreduce"):
        row |= {name: reduced[key] for key, name in _OF_ALLREDUCE.items()}
    return row


@lru_cache(maxsize=16384)
def _identity(config: str) -> str:
    """Return a config's JSON without defaults. Repeats share a config, so it is made once each."""
    return _json(canonical(RunConfig.model_validate_json(config)))


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
