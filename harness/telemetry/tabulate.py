"""The raw series of all nodes as one table: a row a sample and subject, nothing averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.store.raw import column
from harness.telemetry.series import Column, NodeSeries

if TYPE_CHECKING:
    import pyarrow as pa

#: What a subject may have. Rates are of the time since the sample before.
VALUES = (
    "cpu_utilisation",  # node: 0..1 of its cores
    "cores_busy",  # rank
    "rss_bytes",  # rank
    "utilisation",  # devices: see nvml.py
    "sm_activity",
    "memory_used_bytes",
    "power_w",
    "energy_j",  # counter
    "sm_clock_mhz",
    "throttle_reasons_bits",
)


def table(nodes: Sequence[NodeSeries]) -> pa.Table:
    """Return rows of host, subject, index, time_s, segment, uuid and ``VALUES``.

    ``subject`` is "node", "rank" or "device"; ``index`` its number on the host (of a rank, its
    place among the node's; of a device, NVML's). Null where a subject has no such value, or none at
    that sample: a rate at the first sample and after a pause. A column that nobody has is left out.
    """
    import pyarrow as pa

    rows = [
        _rows(node, subject, index, uuid, values)
        for node in nodes
        for subject, index, uuid, values in _subjects(node)
    ]
    whole = pa.concat_tables(rows)
    optional = ("uuid", *VALUES)
    empty = [name for name in optional if whole.column(name).null_count == whole.num_rows]
    return whole.drop_columns(empty)


def _subjects(node: NodeSeries) -> Iterator[tuple[str, int, str | None, dict[str, Column]]]:
    busy = _differences(node.cpu_busy_s, node.segment)
    total = _differences(node.cpu_total_s, node.segment)
    seconds = _differences(node.times_s, node.segment)
    # A share: rounding, and counters that step back for a moment, carry it past its ends.
    yield "node", 0, None, {"cpu_utilisation": np.clip(_quotient(busy, total), 0.0, 1.0)}
    for index, (cpu_s, rss) in enumerate(zip(node.rank_cpu_s, node.rank_rss_bytes, strict=True)):
        cores = _quotient(_differences(cpu_s, node.segment), seconds)
        yield "rank", index, None, {"cores_busy": cores, "rss_bytes": rss}
    for device in node.devices:
        yield "device", device.index, device.uuid, dict(device.columns)


def _differences(values: Column, segment: Column) -> Column:
    """Return growth since the sample before, NaN for the first of a segment."""
    growth = np.full(len(values), np.nan)
    growth[1:] = np.where(np.diff(segment) == 0, np.diff(values), np.nan)
    return growth


def _quotient(part: Column, whole: Column) -> Column:
    """Return part / whole, NaN where the whole has not grown: ticks of 10 ms may stand still."""
    quotient = np.full(len(part), np.nan)
    np.divide(part, whole, out=quotient, where=whole > 0.0)
    return quotient


def _rows(
    node: NodeSeries, subject: str, index: int, uuid: str | None, values: dict[str, Column]
) -> pa.Table:
    import pyarrow as pa

    count = len(node.times_s)
    columns = {
        "host": _repeated(node.host, count),
        "subject": _repeated(subject, count),
        "index": column(np.full(count, index, dtype=np.int32), pa.int32()),
        "time_s": column(node.times_s, pa.float64()),
        "segment": column(node.segment.astype(np.int32), pa.int32()),
        "uuid": pa.nulls(count, pa.string()) if uuid is None else _repeated(uuid, count),
    }
    for name in VALUES:
        kind = pa.int64() if name.endswith(("_bytes", "_bits")) else pa.float64()
        given = values.get(name)
        columns[name] = pa.nulls(count, kind) if given is None else _nullable(given, kind)
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _nullable(values: Column, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    told = ~np.isnan(values)
    stored = np.where(told, values, 0.0)  # what null hides
    stored = stored.astype(np.int64) if pa.types.is_integer(kind) else stored
    valid = pa.py_buffer(np.packbits(told, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(stored)])


def _repeated(text: str, count: int) -> pa.Array:
    import pyarrow as pa

    size = len(text.encode())
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(text.encode() * count)
    )
