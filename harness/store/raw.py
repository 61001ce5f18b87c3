"""The raw samples beside a record: Parquet files, each with its checksum in the record.

A file is named by what is in it, so two launches of one run cannot write the same file, and a
record's is never another launch's. What a launch left that has no record is nobody's and harmless.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.bounded import UnfitError, file_sha256, read_file
from harness.errors import StoreError
from harness.store.files import named_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

#: What a record may have beside it: steps of every rank, telemetry of every node.
RAW = ("steps", "series")

_SUM_CHARS = 12  # of a checksum, in a name
_NAME = re.compile(r"([A-Za-z0-9_-]{1,64})(?:\.[0-9a-f]{12})?\.(steps|series)\.parquet")
_SUMS = {kind: re.compile(rb'"%s_sha256": "([0-9a-f]{64})"' % kind.encode()) for kind in RAW}


class HasRaw(Protocol):
    """A record, or what was read of one."""

    @property
    def run_id(self) -> str:
        """Return whose samples they are."""

    @property
    def steps_sha256(self) -> str | None:
        """Return the checksum of the raw steps; None where there are none."""

    @property
    def series_sha256(self) -> str | None:
        """Return the checksum of the raw telemetry; None where there is none."""


def raw_path(runs: Path, run_id: str, kind: str, digest: str) -> Path:
    """Return where raw samples with this checksum are written."""
    return runs / f"{run_id}.{digest[:_SUM_CHARS]}.{kind}.parquet"


def find_raw(runs: Path, run_id: str, kind: str, digest: str) -> Path:
    """Return where raw samples are: under their name, or under the one of earlier versions.

    Where there is neither, the former.
    """
    path, earlier = raw_path(runs, run_id, kind, digest), _earlier(runs, run_id, kind)
    return earlier if not path.exists() and earlier.exists() else path


def raw_ids(runs: Path, kind: str) -> frozenset[str]:
    """Return the runs that have a file of raw samples, their record's or not; by one listing."""
    try:
        names = os.listdir(runs)
    except FileNotFoundError:
        return frozenset()
    found = (_NAME.fullmatch(name) for name in names)
    return frozenset(match[1] for match in found if match and match[2] == kind)


def raw_of_text(runs: Path, run_id: str, text: bytes) -> Iterator[tuple[str, Path]]:
    """Yield (kind, file) of the raw samples that a record's text names, however broken it is.

    A file of the earlier name has no checksum in it, and nothing but this run's records had it.
    """
    for kind, pattern in _SUMS.items():
        match = pattern.search(text)
        path = raw_path(runs, run_id, kind, match[1].decode()) if match else None
        for one in (path, _earlier(runs, run_id, kind)):
            if one is not None and one.exists():
                yield kind, one


def column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return a numpy array, (n,) of the type that ``kind`` is, as a column without nulls.

    By its buffer: ``pyarrow.array`` imports pandas to see whether it was given one of its own, and
    that is a second more for every launch.
    """
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.copy())])


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


#: Beyond any raw samples: they are held in memory as a whole.
_MAX_RAW_BYTES = 1 << 40


def read_raw(runs: Path, record: HasRaw, kind: str) -> pa.Table:
    """Return raw samples; StoreError where they are not what the record was written with."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    digest = _sums(record)[kind]
    if digest is None:
        raise StoreError(f"{runs / record.run_id}.json: this launch has no raw {kind}")
    path = find_raw(runs, record.run_id, kind, digest)
    fault = raw_fault(runs, record)
    if fault:
        raise StoreError(f"{path}: {fault}")
    with named_errors(path, "read"):
        return pq.ParquetFile(pa.BufferReader(read_file(path, _MAX_RAW_BYTES))).read()


def raw_fault(runs: Path, record: HasRaw) -> str | None:
    """Return what is wrong with the raw samples of a record; None where all are sound."""
    for kind, digest in _sums(record).items():
        if digest is None:
            continue
        fault = _file_fault(find_raw(runs, record.run_id, kind, digest), digest)
        if fault:
            return f"its raw {kind} {fault}"
    return None


def _sums(record: HasRaw) -> Mapping[str, str | None]:
    return {"steps": record.steps_sha256, "series": record.series_sha256}


def _earlier(runs: Path, run_id: str, kind: str) -> Path:
    return runs / f"{run_id}.{kind}.parquet"


def _file_fault(path: Path, digest: str) -> str | None:
    try:
        found = file_sha256(path)
    except FileNotFoundError:
        return "are missing"
    except IsADirectoryError:
        return "are a folder"
    except UnfitError as error:
        return f"are {error}"
    except OSError as error:
        # Disk or rights, no fault of the record: it is not measured again for that.
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    if found != digest:
        return "are not those it was written with (wrong checksum)"
    return None
