"""One sweep's folder.

::

    RESULTS/<sweep>/
        sweep.json, sweep.yaml, sweep.<n>.yaml          what this is; earlier configs, numbered
        runs/<run_id>.<sha256>.steps.parquet            raw steps; 12 digits of their checksum
        runs/<run_id>.<sha256>.series.parquet           raw telemetry, where it was taken
        runs/<run_id>.json                              the record, after them: the commit
        runs/<run_id>.attempt-<n>.json                  an attempt that gave no measurement
        logs/<run_id>/<attempt>/                        run.json, launcher.log, rank-K.log
        quarantine/                                     what was found broken, and why

Processes on any number of hosts share it without a lock: a record gets its name by a hard link,
which never replaces one; raw files are named by what is in them; a number or a name is claimed by
making it. Where a file system has no hard links, such a name is given under a lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bounded import read_file
from harness.clock import utc_now
from harness.errors import StoreError
from harness.paths import is_text, is_utf8
from harness.record import SCHEMA_VERSION, RunRecord
from harness.store.files import (
    move_aside,
    named_errors,
    remove_leftovers,
    write_atomic,
    write_new,
)
from harness.store.migrate import check_version
from harness.store.quarantine import Broken, Quarantine, text_of
from harness.store.raw import parquet_bytes, raw_path, read_raw
from harness.store.reading import (
    BrokenError,
    Decided,
    Memo,
    MissingError,
    read_decided,
    read_record,
    read_sealed,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FEW = 16  # names that are looked for one by one
_DONE = re.compile(r"([A-Za-z0-9_-]{1,64})\.json")
_FAILED = re.compile(r"([A-Za-z0-9_-]{1,64})\.attempt-(\d{1,9})\.json")


class Store:
    """The results of one sweep, made by ``Store.open``; many processes may share a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"
        self.logs = path / "logs"
        self.quarantine = path / "quarantine"
        self._lock = path / ".lock"
        self._broken = Quarantine(self.quarantine, self.runs, self._lock)

    @classmethod
    def open(cls, path: Path | str, *, create: bool = False) -> Store:
        """Open a sweep's folder; with ``create``, make what is missing and prove it can be written.

        Raises StoreError where it is not there, is no folder, cannot be written (with ``create``),
        is of a newer schema, or its path is no text.
        """
        store = cls(Path(path))
        if store.path.exists() and not store.path.is_dir():
            raise StoreError(f"{path}: is a file, not a results folder; choose another --results")
        # No record could name what is no text, and Arrow could not open it.
        if not (is_text if create else is_utf8)(store.path):
            raise StoreError(
                f"{path}: a name in this path is no text in UTF-8; rename it, or choose another "
                "--results"
            )
        with named_errors(store.path, "read"):
            store._check_identity(create)
        if create:
            with named_errors(store.path, "written"):
                store._create()
        return store

    @property
    def name(self) -> str:
        """Return the sweep's name: the folder's."""
        return self.path.name

    def save_config(self, text: str) -> None:
        """Keep the resolved config as ``sweep.yaml``; an earlier, different one gets a number.

        None is lost where several processes save different ones; one of them has the name then.
        """
        path, data = self.path / "sweep.yaml", text.encode()
        with named_errors(path, "written"):
            while text_of(path) != data:
                if write_new(path, data, self._lock):
                    return
                with suppress(FileNotFoundError):  # another process was faster
                    kept = move_aside(path, self._next_config())
                    if text_of(kept) == data:  # it has just been written by another process
                        kept.unlink()

    def claim_attempt(self, run_id: str) -> tuple[int, Path]:
        """Return the next attempt number of a run, from 1, and its new log folder.

        The number is claimed by making the folder, so two runners never share one.
        """
        folder = self.logs / _checked(run_id)
        with named_errors(folder, "written"):
            folder.mkdir(parents=True, exist_ok=True)
            attempt = self.next_attempt(run_id)
            while True:
                try:
                    (folder / str(attempt)).mkdir()
                except FileExistsError:
                    attempt += 1
                else:
                    return attempt, folder / str(attempt)

    def next_attempt(self, run_id: str) -> int:
        """Return the number that ``claim_attempt`` would try first."""
        try:
            names = [entry.name for entry in os.scandir(self.logs / _checked(run_id))]
        except FileNotFoundError:
            return 1
        except OSError as error:
            place = self.logs / run_id
            raise StoreError(f"{place}: cannot be read: {error.strerror}") from error
        return (
            max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1
        )

    def done_ids(self) -> set[str]:
        """Return the ids of all committed runs, from one listing of the folder.

        What is in the files is not looked at: ``verify`` does that.
        """
        return {match[1] for name in self._listing() if (match := _DONE.fullmatch(name))}

    def is_done(self, run_id: str) -> bool:
        """Say whether a run is committed now, by whoever; one look at a name."""
        return self._record_path(run_id).exists()

    def attempts(self) -> set[tuple[str, int]]:
        """Return (run id, attempt) of all attempts that gave no measurement, from one listing."""
        found = (_FAILED.fullmatch(name) for name in self._listing())
        return {(match[1], int(match[2])) for match in found if match}

    def commit(
        self, record: RunRecord, steps: pa.Table | None, series: pa.Table | None = None
    ) -> RunRecord:
        """Write a measurement: raw steps and series, then the record, which makes the run done.

        Returns the record as written, with all checksums. Raises StoreError where the run is done
        already (a measurement is never overwritten) or the folder cannot be written. Of committers
        that race, on any hosts, one writes the record; the others' raw files belong to nobody.
        """
        if record.status != "ok":
            raise ValueError(f"only an ok record is a measurement, not {record.status}")
        path = self._record_path(record.run_id)
        raw = {
            kind: parquet_bytes(table)
            for kind, table in (("steps", steps), ("series", series))
            if table is not None
        }
        sums = {kind: hashlib.sha256(data).hexdigest() for kind, data in raw.items()}
        fields = {f"{kind}_sha256": digest for kind, digest in sums.items()}
        sealed = record.model_copy(update=fields).sealed()
        with named_errors(path, "written"):
            # Looked at before as well: who comes late leaves no raw files that nobody needs.
            if path.exists() or not self._write(path, sealed, raw, sums):
                raise StoreError(f"{path}: this run is done already; nothing was overwritten")
        return sealed

    def _write(
        self, path: Path, sealed: RunRecord, raw: Mapping[str, bytes], sums: Mapping[str, str]
    ) -> bool:
        for kind, data in raw.items():
            write_atomic(raw_path(self.runs, sealed.run_id, kind, sums[kind]), data)
        return write_new(path, sealed.text(), self._lock)

    def add_failure(self, record: RunRecord) -> RunRecord:
        """Write an attempt that gave no measurement beside the runs; return it with its checksum.

        An attempt belongs to one launch, so what the same attempt wrote before is replaced.
        """
        if record.status == "ok":
            raise ValueError("an ok record is committed, not added as a failure")
        path = self._failure_path(record.run_id, record.attempt)
        sealed = record.sealed()
        with named_errors(path, "written"):
            write_atomic(path, sealed.text())
        return sealed

    def read(self, run_id: str) -> RunRecord:
        """Return a committed record; StoreError: missing, broken, or of a newer schema."""
        return read_record(self._record_path(run_id), run_id)

    def decided(self, run_ids: Iterable[str]) -> Iterator[Decided]:
        """Yield of those of ``run_ids`` that are done and whole what a sweep must know.

        Raw steps are not looked at, and nothing is moved. Other errors as of ``read``.
        """
        memo = Memo()
        for run_id in run_ids:
            with suppress(BrokenError, MissingError):
                yield read_decided(self._record_path(run_id), run_id, memo)

    def read_failure(self, run_id: str, attempt: int) -> RunRecord:
        """Return an attempt that gave no measurement; errors as of ``read``."""
        return read_record(self._failure_path(run_id, attempt), run_id)

    def read_steps(self, run_id: str) -> pa.Table:
        """Return the raw steps of a committed run, one row a rank and step.

        Raises StoreError where they are missing or not what the record was written with.
        """
        return read_raw(self.runs, self.read(run_id), "steps")

    def read_series(self, run_id: str) -> pa.Table | None:
        """Return a run's raw telemetry; None where none was taken. Errors as of ``read_steps``."""
        record = self.read(run_id)
        return None if record.series_sha256 is None else read_raw(self.runs, record, "series")

    def records(self) -> Iterator[RunRecord]:
        """Yield all records, done runs and failed attempts, in the order of their file names.

        A broken one is left out with a warning, and where it is. Raw steps are not opened.
        """
        for name in sorted(self._listing()):
            match = _DONE.fullmatch(name) or _FAILED.fullmatch(name)
            if match is None:
                continue
            try:
                yield read_record(self.runs / name, match[1])
            except BrokenError as error:
                log.warning("%s; the point counts as missing", error)
            except MissingError:
                continue  # somebody else's quarantine since the listing

    def verify(
        self,
        run_ids: Iterable[str],
        report: Callable[[Broken], None] | None = None,
        check: Callable[[Decided], None] | None = None,
    ) -> set[str]:
        """Return those of ``run_ids`` that are done and whole, checksums and raw steps included.

        Broken ones go to quarantine, each reported. A record of a newer schema is a StoreError, and
        ``check``, which gets every whole record, may raise one; then nothing has been moved.
        """
        whole: set[str] = set()
        memo = Memo()
        broken: list[tuple[str, str]] = []
        for run_id in self._named(list(run_ids)):
            try:
                found = self._broken.judge(self._record_path(run_id), run_id, memo)
            except MissingError:
                continue  # somebody else's quarantine since the listing
            if isinstance(found, str):
                broken.append((run_id, found))
                continue
            if check is not None:
                check(found)
            whole.add(run_id)
        for run_id, fault in broken:
            moved = self._broken.set_aside_broken(self._record_path(run_id), run_id, fault)
            if moved is None:  # another process has moved it, or put a good one there meanwhile
                whole |= self.verify([run_id], report, check)
                continue
            (report or (lambda item: log.warning("%s", item)))(moved)
        return whole

    def _named(self, run_ids: list[str]) -> list[str]:
        """Return those of ``run_ids`` that have a record's file, in their order.

        A few are looked for by name: a listing after every launch of a long sweep would take longer
        and longer.
        """
        if len(run_ids) > _FEW:
            done = self.done_ids()
            return [name for name in run_ids if name in done]
        return [name for name in run_ids if os.path.lexists(self._record_path(name))]

    def sound_ids(self) -> set[str]:
        """Return the ids of all committed runs whose records are whole; changes nothing.

        Raw steps are not looked at. NewerSchemaError where a record is of a newer schema.
        """
        sound = set()
        for run_id in self.done_ids():
            try:
                data = read_sealed(self._record_path(run_id))
            except BrokenError as error:
                log.warning("%s; the point counts as missing", error)
                continue  # ``run`` moves it away and measures again
            except MissingError:
                continue
            if data.get("run_id") == run_id:
                sound.add(run_id)
        return sound

    def retract(self, run_id: str, reason: str) -> Broken:
        """Move a committed run to quarantine, because its launch failed after all."""
        path = self._record_path(run_id)
        moved = self._broken.set_aside(path, run_id, reason)
        return moved or Broken(run_id, f"{reason} (moved by another process meanwhile)", path)

    def _check_identity(self, create: bool) -> None:
        path = self.path / "sweep.json"
        try:
            data = json.loads(read_file(path))
            check_version(data["schema_version"], str(path))
        except FileNotFoundError:
            if not create:
                raise StoreError(
                    f"{self.path}: no results here (there is no sweep.json); "
                    "`hvdscale ls` lists what there is"
                ) from None
        except NotADirectoryError:
            raise StoreError(
                f"{self.path}: a part of this path is a file; choose another --results"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError, IsADirectoryError):
            raise StoreError(
                f"{path}: not what hvdscale wrote; remove it if this is a sweep's folder (`run` "
                "writes it anew), or choose another --results"
            ) from None

    def _create(self) -> None:
        for folder in (self.runs, self.logs, self.quarantine):
            folder.mkdir(parents=True, exist_ok=True)
        path = self.path / "sweep.json"
        if not path.exists():
            data = {"schema_version": SCHEMA_VERSION, "name": self.name, "created": utc_now()}
            write_new(path, json.dumps(data, indent=1).encode(), self._lock)
        # Found out now rather than after the first measurement.
        now_s = min(_prove_writable(folder) for folder in (self.path, self.runs, self.logs))
        for folder in (self.path, self.runs, self.logs, self.quarantine):
            remove_leftovers(folder, now_s)

    def _next_config(self) -> Path:
        numbers = [
            int(m[1])
            for entry in os.scandir(self.path)
            if (m := re.fullmatch(r"sweep\.(\d+)\.yaml", entry.name))
        ]
        return self.path / f"sweep.{max(numbers, default=0) + 1}.yaml"

    def _listing(self) -> list[str]:
        try:
            with os.scandir(self.runs) as entries:
                return [entry.name for entry in entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.runs}: cannot be read: {error.strerror}") from error

    def _record_path(self, run_id: str) -> Path:
        return self.runs / f"{_checked(run_id)}.json"

    def _failure_path(self, run_id: str, attempt: int) -> Path:
        return self.runs / f"{_checked(run_id)}.attempt-{attempt}.json"


def _prove_writable(folder: Path) -> float:
    """Return the time by the folder's own clock, in seconds; OSError where it takes no file."""
    probe = folder / f".probe.{secrets.token_hex(8)}.tmp"  # pids are of one host
    try:
        try:
            write_atomic(probe, b"")
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        # The user knows the folder; the probe is nobody's file.
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _checked(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise StoreError(f"{run_id!r} is no run id")
    return run_id
