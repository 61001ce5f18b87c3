"""``collect``: a sweep's records as one table, Parquet and CSV. Only new files are read again."""

from __future__ import annotations

import gc
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from harness.analysis.columns import COLUMNS
from harness.analysis.evaluations import update_evaluations
from harness.analysis.frame import arrow_table, facts, to_pandas
from harness.analysis.writing import MARK, write_table
from harness.errors import StoreError
from harness.record import SCHEMA_VERSION, is_whole
from harness.store import Store
from harness.store.migrate import NewerSchemaError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TABLE = "table.parquet"
CSV = "table.csv"
#: Raised when a column means something else; that columns come or go is seen by itself.
TABLE_VERSION = 2
#: Status of a file that is no whole record; the runner moves it away and measures again.
UNREADABLE = "unreadable"

_RECORD = re.compile(r"([A-Za-z0-9_-]{1,64}?)(?:\.attempt-(\d{1,9}))?\.json")
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
            "file": self.file,
            "file_bytes": self.file_bytes,
            "file_mtime_ns": self.file_mtime_ns,
        }


def collect(sweep_dir: Path | str) -> Path:
    """Write ``table.parquet`` and ``table.csv`` into a sweep's folder; return the former's path.

    One row a record, failed attempts included, columns as of ``columns.COLUMNS`` with the file's
    name, size and time before them. A file whose three are in the present table is not read again.
    A file that is no whole record becomes a row of status ``unreadable``. Where there are
    trainings, ``evaluations.parquet`` and ``evaluations.csv`` have their evaluations. Raises
    StoreError where the folder cannot be read or a record is of a newer schema, AnalysisError where
    a table cannot be written.
    """
    folder = Path(sweep_dir)
    store = Store.open(folder)
    sources = _sources(store)
    known = _known(folder / TABLE)
    kept = [source for source in sources if source in known]
    fresh = [source for source in sources if source not in known]
    path = folder / TABLE
    if not fresh and len(kept) == len(known) and known and (folder / CSV).exists():
        update_evaluations(store, _columns(path, (*_SOURCE, "kind", "status", "run_id")))
        return path
    with _no_garbage_collection():
        rows = [source.row() | _read(store, source) for source in fresh]
    table = arrow_table(rows, _SOURCE | COLUMNS)
    if kept:
        table = _merged(table, path, {source.file for source in kept})
    # By file name: the order then depends on nothing but which records there are.
    table = table.sort_by("file")
    update_evaluations(store, table)  # first: an up-to-date table then has up-to-date evaluations
    write_table(table, path, folder / CSV, _version())
    return path


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
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


def load(sweep_dir: Path | str) -> pd.DataFrame:
    """Collect a sweep's records and return the table."""
    return to_pandas(load_arrow(sweep_dir))


def load_arrow(sweep_dir: Path | str) -> pa.Table:
    """Collect a sweep's records and return the table without pandas, which takes time to load."""
    import pyarrow.parquet as pq

    # Not read_table, which loads the data sets of Arrow, and with them pandas.
    return pq.ParquetFile(collect(sweep_dir)).read()


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
    data = _sealed(os.path.join(store.runs, source.file))
    if data is not None and data.get("run_id") == run_id:
        return facts(data)
    try:
        record = store.read_failure(run_id, int(attempt)) if attempt else store.read(run_id)
    except NewerSchemaError:
        raise
    except StoreError as error:
        return {
            "sweep": store.name,
            "run_id": run_id,
            "attempt": int(attempt) if attempt else None,
            "status": UNREADABLE,
            "cause": str(error),
        }
    return facts(record.model_dump(mode="json"))


def _sealed(path: str) -> dict[str, Any] | None:
    """Return the plain data of a record of this schema whose checksum fits, else None.

    What has the right checksum is what ``RunRecord.sealed`` wrote, so its fields need no second
    check; that is half of the time of reading. Everything else goes the store's careful way.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.readall()
        data = from_json(text)
        if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
            return None
        return data if is_whole(text, data) else None
    except (OSError, ValueError, RecursionError):
        return None


def _known(path: Path) -> set[Source]:
    """Return what the present table was made of; nothing where it is of another version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        if (file.schema_arrow.metadata or {}).get(MARK) != _version():
            return set()
        columns = file.read(columns=list(_SOURCE)).to_pydict()
    except FileNotFoundError:
        return set()
    except (pa.ArrowException, OSError):
        return set()  # cut off or foreign: the records are there, so it is made anew
    return set(map(Source, *(columns[name] for name in _SOURCE)))


def _columns(path: Path, names: Iterable[str]) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path).read(columns=list(names))


def _version() -> bytes:
    columns = hashlib.sha256(repr(sorted(COLUMNS.items())).encode()).hexdigest()[:16]
    return f"table {TABLE_VERSION}, columns {columns}, schema {SCHEMA_VERSION}".encode()


def _merged(fresh: pa.Table, path: Path, keep: set[str]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    present = pq.ParquetFile(path).read()
    old = present.filter(pc.is_in(present["file"], pa.array(sorted(keep))))
    return pa.concat_tables([old.cast(fresh.schema), fresh])
