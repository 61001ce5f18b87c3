"""The rows of a table as analysis reads them, and what it asks of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any

from harness.analysis.columns import OVERHEAD_ERRORS, OVERHEADS
from harness.stats import BlockKey

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Row = dict[str, Any]
RATE = "throughput_samples_per_s"

#: Columns that a launch of a point keeps as they are.
LAUNCH_COLUMNS = (
    "epoch_s",
    "data_s",
    "forward_s",
    "backward_s",
    "exposed_sync_s",
    "transfer_s",
    "wait_s",
    "update_s",
    "phase_sum_s",
    "allreduce_p50_s",
    "ablation_difference_s",
    "interference_s",
    "skew_s",
    "clock_wait_s",
    "feed_warm_s",
    "feed_cold_s",
    "allreduce_bytes",
    "busbw_bytes_per_s",
    "cpu_utilisation",
    "rank_cpu_cores",
    "gpu_utilisation",
    "gpu_power_w",
)
STEADINESS_COLUMNS = (
    *("drift_change", "drift_p_value", "drifting", "outliers", "outlier_time_share"),
)  # fmt: skip
TELEMETRY_COLUMNS = (
    *("rank_cpu_cores", "rank_rss_max_bytes", "gpu_utilisation", "gpu_sm_activity", "gpu_power_w"),
    "energy_per_sample_j",
)
TIMELINE_COLUMNS = (
    "timeline_steps",
    "timeline_negotiation_s",
    "timeline_queue_s",
    "timeline_copy_in_s",
    "timeline_allreduce_s",
    "timeline_copy_out_s",
    "timeline_tensors",
    "timeline_allreduces",
)
_USED = (
    *("kind", "run_id", "attempt", "status", "cause", "allocation", "repeat", "is_base"),
    *("sequential", "workload", "framework", "engine", "backend", "device", "scaling"),
    *("world_size", "nodes", "placement", "batch_size", "global_batch_size", "rank_batch"),
    *("steps", "wall_s", "skew_resolved", "config", "provenance", RATE),
    *("interference_error_s", *OVERHEAD_ERRORS),
    *(*LAUNCH_COLUMNS, *STEADINESS_COLUMNS, *TIMELINE_COLUMNS, *TELEMETRY_COLUMNS, *OVERHEADS),
)


def read_rows(table: pd.DataFrame | pa.Table, good: bool | None = None) -> list[Row]:
    """Return the rows with None for what is missing, in an order that is always the same.

    ``good`` chooses those with the status ``ok``, or those without. Only the columns that are
    used, and column by column: pandas' own way to rows takes four times as long, and ten thousand
    rows of all columns are a second more.
    """
    if hasattr(table, "to_pydict"):
        columns = _arrow_columns(table, good)
    else:
        columns = _pandas_columns(table if good is None else table[_is_ok(table) == good])
    columns["block"] = list(zip(columns["allocation"], columns["repeat"], strict=True))
    values = zip(*columns.values(), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    return sorted(
        rows, key=lambda row: (row["run_id"], row["allocation"] or "", row["attempt"] or 0)
    )


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep the collector from walking over thousands of rows again and again; they hold no cycles.

    With it, reading 10,000 records takes more than half as long again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def block_of(row: Row) -> BlockKey:
    """Return the block that a launch belongs to."""
    block: BlockKey = row["block"]
    return block


def rates_by_block(rows: Iterable[Row], column: str = RATE) -> dict[BlockKey, float]:
    """Return the value of each block: the geometric mean where it has several launches.

    One launch is usual; two are where one placement is written in two ways (``1`` and ``1x1``).
    """
    values: dict[BlockKey, list[float]] = {}
    for row in rows:
        values.setdefault(block_of(row), []).append(float(row[column]))
    return {block: v[0] if len(v) == 1 else geometric_mean(v) for block, v in values.items()}


def means_by_block(rows: Iterable[Row], column: str) -> dict[BlockKey, float]:
    """Return the mean of each block that has a value."""
    values: dict[BlockKey, float] = {}
    several: dict[BlockKey, list[float]] = {}
    for row in rows:
        block, value = row["block"], row[column]
        if value is None:
            continue
        if block in values:
            several.setdefault(block, [values[block]]).append(value)
        else:
            values[block] = value
    return values | {block: fmean(found) for block, found in several.items()}


def _is_ok(table: pd.DataFrame) -> pd.Series[bool]:
    return (table["status"] == "ok").fillna(value=False).astype(bool)


def _arrow_columns(table: pa.Table, good: bool | None) -> dict[str, list[Any]]:
    import pyarrow.compute as pc

    if good is not None:
        is_ok = pc.fill_null(pc.equal(table["status"], "ok"), False)
        table = table.filter(is_ok if good else pc.invert(is_ok))
    columns: dict[str, list[Any]] = table.select(list(dict.fromkeys(_USED))).to_pydict()
    return columns


def _pandas_columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    return {
        name: table[name].astype(object).where(table[name].notna(), None).tolist() for name in _USED
    }
