"""Records as a tidy table: one row a launch, flat columns with their units.

What needs more than one launch (speedup, efficiency, intervals) is in ``scaling``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from harness.analysis import columns
from harness.analysis.unlike import shared_provenance
from harness.config import RunConfig
from harness.config.identity import canonical
from harness.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def frame(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return the table of ``records``, with every column of ``columns.COLUMNS``, in their order."""
    return to_pandas(arrow_table([facts(record.model_dump(mode="json")) for record in records]))


def arrow_table(
    rows: Sequence[Mapping[str, Any]], wanted: Mapping[str, str] = columns.COLUMNS
) -> pa.Table:
    """Return rows made by ``facts`` as a table of ``wanted`` columns, in the order given."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "Int64": pa.int64(),
        "Float64": pa.float64(),
        "boolean": pa.bool_(),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in wanted.items()])
    if not rows:
        return schema.empty_table()
    # Whole rows at once: a look for each value of each row would take as long as reading them.
    empty, in_order = dict.fromkeys(schema.names), itemgetter(*schema.names)
    values = zip(*(in_order({**empty, **row}) for row in rows), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
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
    """Return one row: the columns of ``columns.COLUMNS``; what was not measured is missing.

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
        "placement": "+".join(str(int(devices)) for devices in resolved["placement"]),
        "rank_batch": rank_batch,
        "global_batch": rank_batch * world_size,
        "config": _identity(to_json(config)),
        "provenance": _encode(
            shared_provenance(record.get("provenance") or {}, resolved["launcher"])
        ),
    }
    row |= {key: record[key] for key in columns.OF_RECORD}
    row |= {key: block[key] for key in columns.OF_BLOCK}
    row["sequential"] = block.get("sequential", False)  # a file may be older than the field
    row |= {key: config[key] for key in columns.OF_CONFIG}
    row |= {key: resolved[key] for key in columns.OF_RESOLVED}
    return row | _measured(record)


def _measured(record: Mapping[str, Any]) -> dict[str, Any]:
    workload, window = record.get("workload"), record.get("window")
    row: dict[str, Any] = {}
    if workload:
        row |= {key: workload[key] for key in columns.OF_WORKLOAD}
    if window:
        row |= {key: window[key] for key in columns.OF_WINDOW}
        row |= _renamed(window.get("steadiness"), columns.OF_STEADINESS)
        row["rank_wall_min_s"] = min(window["rank_wall_s"], default=None)
    if workload and window:
        row["epoch_s"] = workload["train_samples"] / window["throughput_samples_per_s"]
    row |= _renamed(record.get("phases"), columns.OF_PHASES)
    row |= _renamed(record.get("ablation"), columns.OF_ABLATION)
    row |= _renamed(record.get("clocks"), columns.OF_CLOCKS)
    row |= _renamed(record.get("allreduce"), columns.OF_ALLREDUCE)
    row |= _renamed(record.get("feed"), columns.OF_FEED)
    row |= _renamed(record.get("timeline"), columns.OF_TIMELINE)
    overheads = record.get("overheads") or {}
    errors = record.get("overhead_errors") or {}
    row |= {column: overheads.get(name) for column, name in columns.OVERHEADS.items()}
    row |= {column: errors.get(name) for column, name in columns.OVERHEAD_ERRORS.items()}
    if telemetry := record.get("telemetry"):
        row |= _telemetry(telemetry)
    return row


def _renamed(part: Mapping[str, Any] | None, names: Mapping[str, str]) -> dict[str, Any]:
    return {column: part[key] for key, column in names.items()} if part else {}


def _telemetry(found: Mapping[str, Any]) -> dict[str, Any]:
    nodes = found["nodes"]
    devices = [device for node in nodes for device in node["devices"]]
    reasons = sorted({reason for device in devices for reason in device["throttle_reasons"] or ()})
    return {
        "cpu_utilisation": _mean(node["cpu_utilisation_mean"] for node in nodes),
        "rank_cpu_cores": _mean(cores for node in nodes for cores in node["rank_cpu_mean"]),
        "rank_rss_max_bytes": _greatest(b for n in nodes for b in n["rank_rss_max_bytes"]),
        "gpu_utilisation": _mean(device["utilisation_mean"] for device in devices),
        "gpu_sm_activity": _mean(device["sm_activity_mean"] for device in devices),
        "gpu_memory_max_bytes": _greatest(device["memory_used_max_bytes"] for device in devices),
        "gpu_sm_clock_mhz": _mean(device["sm_clock_mean_mhz"] for device in devices),
        "gpu_power_w": found["power_mean_w"],
        "energy_per_sample_j": found["energy_per_sample_j"],
        "gpu_throttle_reasons": ", ".join(reasons) or None,
    }


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None where nothing is there, or some device did not tell its part."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


# json.dumps makes a new encoder at every call; rows are made by the ten thousand.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


@lru_cache(maxsize=16384)
def _identity(config: bytes) -> str:
    """Return a config's JSON without defaults. Repeats share a config, so it is made once each."""
    return _encode(canonical(RunConfig.model_validate_json(config)))
