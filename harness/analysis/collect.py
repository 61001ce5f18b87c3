"""``collect``: a sweep's records as one table, Parquet and CSV. Only new files are read again."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.frame import COLUMNS, facts, table_of
from harness.errors import AnalysisError, StoreError
from harness.record import SCHEMA_VERSION
from harness.store import Store, write_atomic
from harness.store.migrate import NewerSchemaError

if TYPE_CHECKING:
    import pandas as pd

TABLE = "table.parquet"
#: Raised when a column is added or means something else: an older table is then made anew.
TABLE_VERSION = 1
#: Status of a file that is no whole record; the runner moves it away and measures again.
UNREADABLE = "unreadable"

_RECORD = re.compile(r"([A-Za-z0-9_-]{1,64}?)(?:\.attempt-(\d{1,9}))?\.json")
_MARK = b"hvdscale"
_SOURCE = {"file": "string", "file_bytes": "Int64", "file_mtime_ns": "Int64"}


@dataclass(frozen=True)
class Source:
    """A record's file as it lies in the folder; equal sources hold equal records."""

    file: str
    file_bytes: int
    file_mtime_ns: int

    def row(self) -> dict[str, Any]:
        """Return the columns that name the file."""
        return {
            "file": self.file, "file_bytes": self.file_bytes, "file_mtime_ns": self.file_mtime_ns
        }


def collect(sweep_dir: Path | str) -> Path:
    """Write ``table.parquet`` and ``table.csv`` into a sweep's folder; return the former's path.

    One row a record, failed attempts included, columns as of ``frame.COLUMNS`` with the file's name,
    size and time before them. A file whose three are in the present table is not read again. A file
    that is no whole record becomes a row of status ``unreadable``. Raises StoreError where the
    folder cannot be read or written, or a record is of a newer schema.
    """
    folder = Path(sweep_dir)
    store = Store.open(folder)
    sources = _sources(store)
    known = _known(folder / TABLE)
    kept = [source for source in sources if source in known]
    fresh = [source for source in sources if source not in known]
    path = folder / TABLE
    if not fresh and len(kept) == len(known) and known and (folder / "table.csv").exists():
        return path
    table = _table([source.row() | _read(store, source) for source in fresh])
    if kept:
        table = _merged(table, _present(path), {source.file for source in kept})
    _write(folder, table)
    return path


def load(sweep_dir: Path | str) -> pd.DataFrame:
    """Collect a sweep's records and return the table."""
    import pandas as pd

    table = pd.read_parquet(collect(sweep_dir))
    return table.astype(_SOURCE | COLUMNS)


def _sources(store: Store) -> list[Source]:
    found = []
    try:
        with os.scandir(store.runs) as entries:
            for entry in entries:
                if _RECORD.fullmatch(entry.name):
                    stat = entry.stat()
                    found.append(Source(entry.name, stat.st_size, stat.st_mtime_ns))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{store.runs}: cannot be read: {error.strerror}") from error
    return sorted(found, key=lambda source: source.file)


def _read(store: Store, source: Source) -> dict[str, Any]:
    match = _RECORD.fullmatch(source.file)
    assert match is not None  # _sources took no other
    run_id, attempt = match[1], match[2]
    try:
        record = store.read_failure(run_id, int(attempt)) if attempt else store.read(run_id)
    except NewerSchemaError:
        raise
    except StoreError as error:
        return {
            "sweep": store.name, "run_id": run_id, "attempt": int(attempt) if attempt else None,
            "status": UNREADABLE, "cause": str(error),
        }
    return facts(record)


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    sources = {
        name: pd.array([row[name] for row in rows], dtype=dtype) for name, dtype in _SOURCE.items()
    }
    return _sorted(pd.concat([pd.DataFrame(sources), table_of(rows)], axis=1))


def _merged(fresh: pd.DataFrame, present: pd.DataFrame, keep: set[str]) -> pd.DataFrame:
    import pandas as pd

    old = present[present["file"].isin(keep)]
    return _sorted(pd.concat([old, fresh], ignore_index=True) if len(fresh) else old)


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """By file name: the order then depends on nothing but which records there are."""
    return table.sort_values("file", ignore_index=True)


def _present(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(path).astype(_SOURCE | COLUMNS)


def _known(path: Path) -> set[Source]:
    """Return what the present table was made of; nothing where it is of another version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        if (file.schema_arrow.metadata or {}).get(_MARK) != _version():
            return set()
        columns = file.read(columns=list(_SOURCE)).to_pydict()
    except FileNotFoundError:
        return set()
    except (pa.ArrowException, OSError):
        return set()  # cut off or foreign: the records are there, so it is made anew
    return set(map(Source, *(columns[name] for name in _SOURCE)))


def _version() -> bytes:
    return f"table {TABLE_VERSION}, schema {SCHEMA_VERSION}".encode()


def _write(folder: Path, table: pd.DataFrame) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False)
    arrow = arrow.replace_schema_metadata((arrow.schema.metadata or {}) | {_MARK: _version()})
    buffer = io.BytesIO()
    pq.write_table(arrow, buffer, compression="zstd")
    try:
        # The CSV first: a table.parquet that is up to date then has an up-to-date CSV beside it.
        write_atomic(folder / "table.csv", table.to_csv(index=False).encode())
        write_atomic(folder / TABLE, buffer.getvalue())
    except OSError as error:
        raise AnalysisError(
            f"{folder}: the table cannot be written: {error.strerror}; free it, or copy the "
            "results to a folder of yours"
        ) from error
