"""Records' files as rows of a table, many of them by several processes at once.

Run as a program it reads sources from its input and writes their rows to its output, as an Arrow
stream: one of the processes of ``read_all``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel
from pydantic_core import from_json

from harness.analysis.columns import COLUMNS
from harness.analysis.frame import arrow_table, facts
from harness.analysis.rows import without_garbage_collection
from harness.bounded import read_file
from harness.errors import StoreError
from harness.record import (
    SCHEMA_VERSION,
    Kind,
    Phases,
    Status,
    Window,
    WorkloadFacts,
    is_whole,
)
from harness.spec import BlockRef, Resolved
from harness.store import Store
from harness.store.migrate import NewerSchemaError
from harness.store.reading import NO_RECORD

if TYPE_CHECKING:
    import pyarrow as pa

#: Status of a file that is no whole record; the runner moves it away and measures again.
UNREADABLE = "unreadable"
SOURCE = {"file": "string", "file_bytes": "Int64", "file_mtime_ns": "Int64"}
RECORD = re.compile(r"([A-Za-z0-9_-]{1,64}?)(?:\.attempt-(\d{1,9}))?\.json")

#: Samples a second outside these are no training's: they would not fit a ratio's logarithm.
_SLOWEST_PER_S, _FASTEST_PER_S = 1e-9, 1e15
_LARGEST = 1e60  # of any number: sums and squares of larger ones overflow
_CHUNK = 4096  # rows that are in memory as Python's objects at a time
_SHARE = 4000  # files that are worth a process's start, about half a second
_PROCESSES = 8  # more wait for the file system

_PARTS: Mapping[str, type[BaseModel]] = {
    "block": BlockRef,
    "resolved": Resolved,
    "workload": WorkloadFacts,
    "window": Window,
    "phases": Phases,
}
_ALWAYS = ("block", "resolved")
_CHOICES = {"status": get_args(Status), "kind": get_args(Kind)}


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


def read_all(store: Store, sources: Sequence[Source]) -> pa.Table:
    """Return the rows of ``sources``, in their order, with the columns of ``SOURCE`` before them.

    Thousands are shared out to a process a core. What a process could not read is read here once
    more, so that its error is raised here.
    """
    import pyarrow as pa

    count = min(len(os.sched_getaffinity(0)), _PROCESSES, len(sources) // _SHARE)
    if count < 2:
        return read_rows_of(store, sources)
    share = -(-len(sources) // count)
    own, *others = (sources[at : at + share] for at in range(0, len(sources), share))
    workers = [_started(store) for _ in others]
    try:
        for worker, part in zip(workers, others, strict=True):
            _hand_over(worker, part)
        tables = [read_rows_of(store, own)]
        for worker, part in zip(workers, others, strict=True):
            found = _taken_from(worker)
            tables.append(read_rows_of(store, part) if found is None else found)
    finally:
        for worker in workers:
            worker.kill()  # nothing to a process that has ended
            with worker:  # which closes its pipes and waits for it
                pass
    return pa.concat_tables(tables)


def read_rows_of(store: Store, sources: Sequence[Source]) -> pa.Table:
    """Return the rows of ``sources``, read by this process."""
    import pyarrow as pa

    tables = [arrow_table([], SOURCE | COLUMNS)]
    for at in range(0, len(sources), _CHUNK):
        with without_garbage_collection():
            rows = [source.row() | _row(store, source) for source in sources[at : at + _CHUNK]]
            tables.append(_sound(_typed(rows)))
    return pa.concat_tables(tables)


def main() -> int:
    """Read sources of the folder that is named, write their rows."""
    import pyarrow as pa

    store = Store.open(Path(sys.argv[1]))
    sources = [Source(*part) for part in json.load(sys.stdin)]
    table = read_rows_of(store, sources)
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)
    return 0


def _started(store: Store) -> subprocess.Popen[bytes]:
    # A program of its own: a fork of a notebook's process would take over locks of its threads,
    # and a spawn of multiprocessing would run the user's script again.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.analysis.reading", str(store.path.resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def _hand_over(worker: subprocess.Popen[bytes], part: Sequence[Source]) -> None:
    assert worker.stdin is not None
    text = json.dumps([[one.file, one.file_bytes, one.file_mtime_ns] for one in part])
    try:
        worker.stdin.write(text.encode())
        worker.stdin.close()
    except BrokenPipeError:
        pass  # it ended early, and its share is read here
    finally:
        worker.stdin = None


def _taken_from(worker: subprocess.Popen[bytes]) -> pa.Table | None:
    """Return the rows that a process read; None where it failed."""
    import pyarrow as pa

    output, _ = worker.communicate()
    if worker.returncode != 0:
        return None
    with pa.ipc.open_stream(output) as stream:
        return stream.read_all()


def _row(store: Store, source: Source) -> dict[str, Any]:
    match = RECORD.fullmatch(source.file)
    assert match is not None  # only such files are sources
    run_id, attempt = match[1], match[2]
    data = _sealed(os.path.join(store.runs, source.file))
    if data is not None and data.get("run_id") == run_id:
        try:
            _check_parts(data)
            return facts(data)
        except NO_RECORD:
            pass  # sealed and yet no record: read with every check below
    try:
        record = store.read_failure(run_id, int(attempt)) if attempt else store.read(run_id)
        return facts(record.model_dump(mode="json"))
    except NewerSchemaError:
        raise
    except StoreError as error:
        # Of a long path the table would show nothing else; the row names the file.
        cause = str(error).replace(f"{store.runs}{os.sep}", "", 1)
    except NO_RECORD as error:
        cause = f"{source.file}: its numbers are none that can be measured ({error})"
    return {
        "sweep": store.name,
        "run_id": run_id,
        "attempt": int(attempt) if attempt else None,
        "status": UNREADABLE,
        "cause": cause,
    }


def _sealed(path: str) -> dict[str, Any] | None:
    """Return the plain data of a record of this schema whose checksum fits, else None.

    What has the right checksum is what ``RunRecord.sealed`` wrote, so not all of its fields get a
    second check; that is half of the time of reading. Everything else goes the store's careful way.
    """
    try:
        text = read_file(path)
        data = from_json(text)
        if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
            return None
        return data if is_whole(text, data) else None
    except (OSError, ValueError, RecursionError):
        return None


def _check_parts(data: Mapping[str, Any]) -> None:
    """Raise ValueError where a part that others are grouped and divided by is none of a record."""
    for name, model in _PARTS.items():
        if data.get(name) is not None or name in _ALWAYS:
            model.model_validate(data.get(name))
    for name, choices in _CHOICES.items():
        if data.get(name) not in choices:
            raise ValueError(f"{name}: {data.get(name)!r} is none of a record's")


def _typed(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table; one with a number that its column cannot hold is a failure."""
    import pyarrow as pa

    try:
        return arrow_table(rows, SOURCE | COLUMNS)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        if len(rows) == 1:
            cause = f"{rows[0]['file']}: its numbers are none that can be measured ({error})"
            plain = {name: rows[0][name] for name in SOURCE}
            plain["sweep"] = sweep if isinstance(sweep := rows[0].get("sweep"), str) else None
            match = RECORD.fullmatch(plain["file"])
            assert match is not None  # only such files are sources
            plain |= {"run_id": match[1], "attempt": int(match[2]) if match[2] else None}
            plain |= {"status": UNREADABLE, "cause": cause}
            return arrow_table([plain], SOURCE | COLUMNS)
    half = len(rows) // 2
    return pa.concat_tables([_typed(rows[:half]), _typed(rows[half:])])


def _sound(table: pa.Table) -> pa.Table:
    """Return the table, rows whose numbers cannot be measured ones turned into failures.

    No launch writes such a record: its numbers are checked before. One from elsewhere must not
    get into a mean.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    faults: dict[int, str] = {}
    for name, kind in COLUMNS.items():
        if kind == "Float64":
            unsound = pc.invert(pc.is_finite(table[name]))
            _note(faults, unsound, f"{name} is not finite")
    for name in ("world_size", "nodes", "rank_batch", "steps", "train_samples"):
        _note(faults, pc.less(table[name], 1), f"its {name} is below 1")
    rate = table["throughput_samples_per_s"]
    _note(faults, pc.less_equal(rate, 0.0), "its throughput is not above 0")
    _note(faults, pc.less_equal(table["wall_s"], 0.0), "its window took no time")
    unreal = pc.or_(pc.less(rate, _SLOWEST_PER_S), pc.greater(rate, _FASTEST_PER_S))
    _note(faults, unreal, "its throughput is none that can be measured")
    for name, kind in COLUMNS.items():
        if kind == "Float64":
            large = pc.greater(pc.abs(table[name]), _LARGEST)
            _note(faults, large, f"{name} is none of a measurement")
    if not faults:
        return table
    columns = {name: table[name].to_pylist() for name in ("file", "status", "cause")}
    for at, fault in faults.items():
        columns["status"][at] = UNREADABLE
        columns["cause"][at] = f"{columns['file'][at]}: {fault}; remove it and run the sweep again"
    for name in ("status", "cause"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(columns[name], pa.string()))
    return table


def _note(faults: dict[int, str], unsound: pa.ChunkedArray, fault: str) -> None:
    import pyarrow.compute as pc

    for at in pc.indices_nonzero(pc.fill_null(unsound, False)).to_pylist():
        faults.setdefault(at, fault)


if __name__ == "__main__":
    sys.exit(main())
