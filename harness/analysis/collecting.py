"""``collect``: a sweep's records as one table, Parquet and CSV. Only new files are read again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.columns import COLUMNS
from harness.analysis.evaluations import update_evaluations
from harness.analysis.frame import to_pandas
from harness.analysis.reading import RECORD, SOURCE, Source, read_all
from harness.analysis.writing import MARK, is_as_written, write_table
from harness.errors import StoreError
from harness.record import SCHEMA_VERSION
from harness.store import Store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TABLE = "table.parquet"
CSV = "table.csv"
#: Raised when a column means something else; that columns come or go is seen by itself.
TABLE_VERSION = 3


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
        update_evaluations(store, _columns(path, (*SOURCE, "kind", "status", "run_id")))
        return path
    table = read_all(store, fresh)
    if kept:
        table = _merged(table, path, {source.file for source in kept})
    # By file name: the order then depends on nothing but which records there are.
    table = table.sort_by("file")
    update_evaluations(store, table)  # first: an up-to-date table then has up-to-date evaluations
    write_table(table, path, folder / CSV, _version())
    return path


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
                if not RECORD.fullmatch(entry.name):
                    continue
                with suppress(FileNotFoundError):  # a runner has moved it away meanwhile
                    stat = _stat(entry)
                    found.append(Source(entry.name, stat.st_size, stat.st_mtime_ns))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{store.runs}: cannot be read: {error.strerror}") from error
    return sorted(found, key=lambda source: source.file)


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    """Return the facts of a file, those of the link where it leads to none."""
    try:
        return entry.stat()
    except OSError:
        if not entry.is_symlink():
            raise
        return entry.stat(follow_symlinks=False)


def _known(path: Path) -> set[Source]:
    """Return what the present table was made of; nothing where it is of another version.

    Nor where it was altered since it was written: the records are there, so it is made anew.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not is_as_written(path):
        return set()
    try:
        file = pq.ParquetFile(path)
        if (file.schema_arrow.metadata or {}).get(MARK) != _version():
            return set()
        columns = file.read(columns=list(SOURCE)).to_pydict()
    except FileNotFoundError:
        return set()
    except (pa.ArrowException, OSError):
        return set()  # cut off or foreign: the records are there, so it is made anew
    return set(map(Source, *(columns[name] for name in SOURCE)))


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
