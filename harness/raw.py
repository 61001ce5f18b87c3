"""The raw steps of a launch as one table: every rank, every instrument, nothing averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.engines.api import PHASES
from harness.measure import phases
from harness.record import STEP_COLUMNS
from harness.store.raw import column

if TYPE_CHECKING:
    import pyarrow as pa

Seconds = NDArray[np.float64]


def step_table(
    plain: Mapping[str, Sequence[Seconds | None]],
    marked: Sequence[phases.Marked],
    *,
    synchronised: bool,
) -> pa.Table:
    """Return ``STEP_COLUMNS`` of all ranks; null where not measured.

    ``plain`` maps an instrument to each rank's (steps,) seconds, None where a rank has none;
    ``marked`` is each rank's marked steps.
    """
    import pyarrow as pa

    tables = [
        _rows(instrument, rank, {"step_s": seconds})
        for instrument, ranks in plain.items()
        for rank, seconds in enumerate(ranks)
        if seconds is not None
    ]
    columns = _phase_columns([one.columns for one in marked], synchronised)
    for rank, (each, one) in enumerate(zip(columns, marked, strict=True)):
        tables.append(_rows("phases", rank, each | {"ready_s": one.ready_s}))
    return pa.concat_tables(tables)


def _phase_columns(marked: Sequence[Seconds], synchronised: bool) -> list[dict[str, Seconds]]:
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


def _rows(instrument: str, rank: int, columns: Mapping[str, Seconds]) -> pa.Table:
    import pyarrow as pa

    count = len(columns["step_s"])
    arrays = {
        "instrument": _repeated(instrument, count),
        "rank": column(np.full(count, rank, dtype=np.int32), pa.int32()),
        "step": column(np.arange(count, dtype=np.int32), pa.int32()),
    }
    for name in STEP_COLUMNS[3:]:
        values = columns.get(name)
        if values is None or np.isnan(values).all():
            arrays[name] = pa.nulls(count, pa.float64())
        else:
            arrays[name] = column(values, pa.float64())
    return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))


def _repeated(text: str, count: int) -> pa.Array:
    import pyarrow as pa

    offsets = np.arange(count + 1, dtype=np.int32) * len(text.encode())
    data = pa.py_buffer(text.encode() * count)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), data)
