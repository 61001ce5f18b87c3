"""A table as two files, Parquet and CSV, each whole or not at all."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import AnalysisError
from harness.store import write_atomic

if TYPE_CHECKING:
    import pyarrow as pa

MARK = b"hvdscale"  # the key of what a Parquet file says that it was made of


def sum_path(parquet: Path) -> Path:
    """Return the file of a table's checksum, such as ``sha256sum -c`` reads."""
    return parquet.with_suffix(".sha256")


def is_as_written(parquet: Path) -> bool:
    """Say whether a table is there and no bit of it has changed since it was written.

    Parquet itself would give other numbers for some. What cannot be read is not as it was written.
    """
    try:
        return sum_path(parquet).read_text(encoding="ascii") == _sum_line(
            parquet, parquet.read_bytes()
        )
    except (OSError, ValueError):
        return False


def _sum_line(parquet: Path, data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()}  {parquet.name}\n"


def mark_of(path: Path) -> bytes | None:
    """Return the mark of a table; None where there is none that is as it was written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not is_as_written(path):
        return None
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return None
    found: bytes | None = metadata.get(MARK)
    return found


def write_table(table: pa.Table, parquet: Path, text: Path, mark: bytes) -> None:
    """Write a table; AnalysisError where the folder does not take it."""
    import pyarrow.parquet as pq
    from pyarrow import csv

    binary, lines = io.BytesIO(), io.BytesIO()
    pq.write_table(table.replace_schema_metadata({MARK: mark}), binary, compression="zstd")
    # The header is written here, because pyarrow would quote it whatever the style.
    lines.write((",".join(table.column_names) + "\n").encode())
    csv.write_csv(table, lines, csv.WriteOptions(include_header=False, quoting_style="needed"))
    try:
        # The CSV first: a Parquet file that is up to date then has an up-to-date CSV beside it.
        write_atomic(text, lines.getvalue())
        write_atomic(parquet, binary.getvalue())
        line = _sum_line(parquet, binary.getvalue())
        write_atomic(sum_path(parquet), line.encode("ascii"))
    except OSError as error:
        raise AnalysisError(
            f"{parquet.parent}: the table cannot be written: {error.strerror}; free it, or copy "
            "the results to a folder of yours"
        ) from error
