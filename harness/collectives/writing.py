"""The files of one command: ``RESULTS/allreduce/<run>/record.json``, raw times beside it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.clock import utc_now
from harness.collectives.measuring import Times
from harness.collectives.record import RECORD, TIME_COLUMNS, CollectivesRecord
from harness.store import write_atomic
from harness.store.files import named_errors
from harness.store.raw import parquet_bytes

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "allreduce"
TIMES = "times.parquet"


@dataclass(frozen=True)
class Written:
    """A record and the folder it is in."""

    record: CollectivesRecord
    folder: Path


def prepare(results: Path) -> None:
    """Make the folder of all runs; StoreError where that cannot be, before time is spent."""
    with named_errors(results / FOLDER, "made"):
        (results / FOLDER).mkdir(parents=True, exist_ok=True)


def write(results: Path, times: Sequence[Times], fields: Mapping[str, Any]) -> Written:
    """Write raw times, then the record, which makes them count; ``fields`` is the rest of it."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    run_id = f"{now}-{secrets.token_hex(3)}"
    folder = results / FOLDER / run_id
    with named_errors(folder, "written"):
        folder.mkdir(parents=True)  # a run's own: its name is not there yet
        data = parquet_bytes(times_table(times))
        write_atomic(folder / TIMES, data)
        record = CollectivesRecord(
            run_id=run_id,
            ended_at=utc_now(),
            times_sha256=hashlib.sha256(data).hexdigest(),
            **fields,
        ).sealed()
        write_atomic(folder / RECORD, (record.model_dump_json(indent=1) + "\n").encode())
    return Written(record, folder)


def times_table(times: Sequence[Times]) -> pa.Table:
    """Return ``TIME_COLUMNS``: every rank's own time of every iteration."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in TIME_COLUMNS}
    for one in times:
        ranks, iterations = one.rank_s.shape
        count = ranks * iterations
        columns["library"] += [one.library] * count
        columns["collective"] += [one.collective] * count
        columns["bytes"] += [one.bytes] * count
        columns["iteration"] += np.tile(np.arange(iterations), ranks).tolist()
        columns["rank"] += np.repeat(np.arange(ranks), iterations).tolist()
        columns["time_s"] += one.rank_s.reshape(-1).tolist()
    text, whole = pa.dictionary(pa.int8(), pa.string()), pa.int32()
    kinds = (text, text, pa.int64(), whole, whole, pa.float64())
    schema = pa.schema(list(zip(TIME_COLUMNS, kinds, strict=True)))
    return pa.Table.from_pydict(columns, schema=schema)
