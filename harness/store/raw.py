"""The raw samples beside a record: Parquet files, each with its checksum in the record."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import StoreError
from harness.record import RunRecord
from harness.store.files import named_errors

if TYPE_CHECKING:
    import pyarrow as pa

#: What a record may have beside it: steps of every rank, telemetry of every node.
RAW = ("steps", "series")


def raw_path(runs: Path, run_id: str, kind: str) -> Path:
    """Return the place of a run's raw samples."""
    return runs / f"{run_id}.{kind}.parquet"


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def read_raw(runs: Path, record: RunRecord, kind: str) -> pa.Table:
    """Return raw samples; StoreError where they are not what the record was written with."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = raw_path(runs, record.run_id, kind)
    fault = raw_fault(runs, record)
    if fault:
        raise StoreError(f"{path}: {fault}")
    with named_errors(path, "read"):
        return pq.ParquetFile(pa.BufferReader(path.read_bytes())).read()


def raw_fault(runs: Path, record: RunRecord) -> str | None:
    """Return what is wrong with the raw samples of a record; None where all are sound."""
    sums = {"steps": record.steps_sha256, "series": record.series_sha256}
    for kind, digest in sums.items():
        path = raw_path(runs, record.run_id, kind)
        fault = None if digest is None else _file_fault(path, digest)
        if fault:
            return f"its raw {kind} {fault}"
    return None


def _file_fault(path: Path, digest: str) -> str | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "are missing"
    except IsADirectoryError:
        return "are a folder"
    except OSError as error:
        # Disk or rights, no fault of the record: it is not measured again for that.
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        return "are not those it was written with (wrong checksum)"
    return None
